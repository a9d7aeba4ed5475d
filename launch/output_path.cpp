#include "launch/output_path.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace coppice {
namespace {

namespace fs = std::filesystem;

// False, with a problem, where there is no directory to write into, or none that can be written.
bool has_parent(std::string_view flag, const fs::path& out, Problems& problems) {
  if (out.empty()) {
    problems.add("{} is empty. Give a name.", flag);
    return false;
  }
  const fs::path name = out.has_filename() ? out : out.parent_path();
  const fs::path parent = name.has_parent_path() ? name.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::is_directory(parent, error)) {
    // Told before the work whose result would have no place.
    if (access(parent.c_str(), W_OK) == 0) return true;
    problems.add("{} {}: the directory {} cannot be written: {}. Give a name in another one.", flag,
                 out.string(), parent.string(), std::strerror(errno));
    return false;
  }
  problems.add("{} {}: the directory {} does not exist. Make it first.", flag, out.string(),
               parent.string());
  return false;
}

// False, with a problem, where the system takes no such name.
bool is_possible(std::string_view flag, const fs::path& out, Problems& problems) {
  std::error_code error;
  const auto type = fs::symlink_status(out, error).type();
  if (!error || type == fs::file_type::not_found) return true;
  problems.add("{} {}: cannot be written: {}. Give another name.", flag, out.string(),
               error.message());
  return false;
}

}  // namespace

void check_output_file(const fs::path& out, const std::vector<fs::path>& inputs, Problems& problems,
                       std::string_view flag) {
  if (!has_parent(flag, out, problems)) return;
  std::error_code error;
  if (!is_possible(flag, out, problems)) return;
  const auto is_out = [&](const fs::path& input) { return fs::equivalent(out, input, error); };
  if (!out.has_filename() || (fs::exists(out, error) && !fs::is_regular_file(out, error)))
    problems.add("{} {}: is no file that could be replaced. Give another name.", flag,
                 out.string());
  else if (std::any_of(inputs.begin(), inputs.end(), is_out))
    problems.add("{} {}: is an input of this command (it would be lost). Give another name.", flag,
                 out.string());
}

void check_output_directory(const fs::path& out, Problems& problems) {
  std::error_code error;
  if (!is_possible("--out", out, problems)) return;
  if (fs::symlink_status(out, error).type() == fs::file_type::not_found)
    has_parent("--out", out, problems);
  else if (fs::equivalent(out, ".", error))
    problems.add(
        "--out {}: is the current directory (a new one would take its place under your feet). "
        "Give the name of a directory to make.",
        out.string());
  else if (!fs::is_directory(out, error) || !fs::is_empty(out, error))
    problems.add(
        "--out {}: exists and is not an empty directory (nothing is overwritten). Remove it or "
        "choose another name.",
        out.string());
}

}  // namespace coppice
