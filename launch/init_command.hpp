#pragma once
// coppice init: a model file with fresh weights from a config.json alone.
#include "launch/command.hpp"

namespace coppice {

void add_init_command(Commands& commands);

}  // namespace coppice
