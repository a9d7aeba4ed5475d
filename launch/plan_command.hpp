#pragma once
// `coppice plan`: what a run would do and need, told before it does anything.
#include "launch/command.hpp"

namespace coppice {

void add_plan_command(Commands& commands);

}  // namespace coppice
