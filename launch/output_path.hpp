#pragma once
// Where a command is asked to write: told to be impossible before any work, as bad usage is. What
// only shows when writing (a full disk, missing rights) stays an I/O error.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace coppice {

/// Adds a problem where `out` cannot become a file, or is one of the files that are read. `flag` is
/// how the command line names it.
void check_output_file(const std::filesystem::path& out,
                       const std::vector<std::filesystem::path>& inputs, Problems& problems,
                       std::string_view flag = "--out");

/// Adds a problem where `out` is there and is no empty directory, or cannot be made.
void check_output_directory(const std::filesystem::path& out, Problems& problems);

}  // namespace coppice
