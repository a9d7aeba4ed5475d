#include "launch/commands.hpp"

#include "launch/plan_command.hpp"
#include "launch/score_command.hpp"
#include "launch/train_command.hpp"

namespace coppice {

void add_all_commands(Commands& commands) {
  add_score_command(commands);
  add_train_command(commands);
  add_plan_command(commands);
}

}  // namespace coppice
