#include "launch/commands.hpp"

#include "launch/calibrate_command.hpp"
#include "launch/export_command.hpp"
#include "launch/import_command.hpp"
#include "launch/init_command.hpp"
#include "launch/inspect_command.hpp"
#include "launch/plan_command.hpp"
#include "launch/report_command.hpp"
#include "launch/score_command.hpp"
#include "launch/study_command.hpp"
#include "launch/train_command.hpp"

namespace coppice {

void add_all_commands(Commands& commands) {
  add_import_command(commands);
  add_export_command(commands);
  add_init_command(commands);
  add_inspect_command(commands);
  add_score_command(commands);
  add_train_command(commands);
  add_plan_command(commands);
  add_study_command(commands);
  add_calibrate_command(commands);
  add_report_command(commands);
}

}  // namespace coppice
