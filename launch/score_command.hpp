#pragma once
// `coppice score`: log-probabilities and entropies of every response token of a rollouts file.
#include "launch/command.hpp"

namespace coppice {

void add_score_command(Commands& commands);

}  // namespace coppice
