#pragma once
// `coppice calibrate`: measures this machine's cores for `coppice plan --cluster`.
#include "launch/command.hpp"

namespace coppice {

void add_calibrate_command(Commands& commands);

}  // namespace coppice
