#pragma once
// `coppice train`: a run as a config tells it, begun or gone on with.
#include "launch/command.hpp"

namespace coppice {

void add_train_command(Commands& commands);

}  // namespace coppice
