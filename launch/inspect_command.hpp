#pragma once
// coppice inspect: what a model, checkpoint or rollouts file holds.
#include "launch/command.hpp"

namespace coppice {

void add_inspect_command(Commands& commands);

}  // namespace coppice
