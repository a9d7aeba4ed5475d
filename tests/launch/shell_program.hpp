#pragma once
// The built program as a shell runs it, for tests of the commands that convert files.
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "support/temporary_directory.hpp"

namespace coppice::test {

inline const std::filesystem::path kGolden =
    std::filesystem::path(COPPICE_SOURCE_DIR) / "tests" / "golden";

struct Outcome {
  int status;
  std::string out, err;
};

/// The program with `arguments` as a shell takes them; `before` is run first (ulimit).
inline Outcome run(const std::string& arguments, const std::string& before = "") {
  const TemporaryDirectory directory;
  const std::string command =
      fmt::format("{} '{}' {} >'{}' 2>'{}'", before, COPPICE_PROGRAM, arguments,
                  (directory / "out").string(), (directory / "err").string());
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_file(directory / "out"), read_file(directory / "err")};
}

inline Outcome import(const std::filesystem::path& from, const std::filesystem::path& to) {
  return run(fmt::format("import --hf '{}' --out '{}'", from.string(), to.string()));
}

inline Outcome export_to(const std::filesystem::path& from, const std::filesystem::path& to,
                         const std::string& more = "") {
  return run(
      fmt::format("export --checkpoint '{}' --out '{}' {}", from.string(), to.string(), more));
}

}  // namespace coppice::test
