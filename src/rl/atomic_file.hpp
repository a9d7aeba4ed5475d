#pragma once
// A text file that appears whole or not at all: it is written beside its place and renamed at the
// end, so that a command that fails leaves nothing behind and a reader never sees half a file.
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace coppice {

/// Effects   writes PATH.partial; commit() flushes it to disk and renames it; without commit() it
///           is removed
/// Errors    IoError with the path and the system's reason
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view text);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::ofstream file_;
  bool committed_ = false;
};

}  // namespace coppice
