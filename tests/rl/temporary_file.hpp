#pragma once
// One file of a test's own, gone when the test ends.
#include "support/temporary_directory.hpp"

namespace coppice::test {

class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& text) : path_(directory_ / name) {
    write_file(path_, text);
  }
  const std::filesystem::path& path() const { return path_; }
  std::string text() const { return read_file(path_); }

 private:
  TemporaryDirectory directory_;
  std::filesystem::path path_;
};

}  // namespace coppice::test
