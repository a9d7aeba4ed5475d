#include "launch/commands.hpp"

#include "launch/score_command.hpp"

namespace coppice {

void add_all_commands(Commands& commands) { add_score_command(commands); }

}  // namespace coppice
