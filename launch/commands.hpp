#pragma once
// The list of subcommands. A new one is launch/<name>_command.{hpp,cpp} with a function
// `void add_<name>_command(Commands&)`, and one line in commands.cpp and in CMakeLists.txt.
#include "launch/command.hpp"

namespace coppice {

void add_all_commands(Commands& commands);

}  // namespace coppice
