#pragma once
// coppice import: a Hugging Face directory becomes a model file.
#include "launch/command.hpp"

namespace coppice {

void add_import_command(Commands& commands);

}  // namespace coppice
