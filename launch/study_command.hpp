#pragma once
// `coppice study`: the same short training run for every combination of a sweep.
#include "launch/command.hpp"

namespace coppice {

void add_study_command(Commands& commands);

}  // namespace coppice
