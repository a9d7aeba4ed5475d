#pragma once
// coppice report: what a run or a study has written, as a page for people.
#include "launch/command.hpp"

namespace coppice {

void add_report_command(Commands& commands);

}  // namespace coppice
