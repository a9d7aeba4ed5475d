#pragma once
// coppice export: a model file or checkpoint becomes a Hugging Face directory.
#include "launch/command.hpp"

namespace coppice {

void add_export_command(Commands& commands);

}  // namespace coppice
