#pragma once
// One run in a run directory at a time: two would overwrite each other's metrics and checkpoints.
#include <filesystem>
#include <string_view>
#include <utility>

namespace coppice {

/// Holds a run directory for this process, until it ends however it ends. Leaves no file.
///
/// Errors    ConfigError when another process holds it; IoError when it cannot be locked at all
class RunLock {
 public:
  /// The directory exists. A study holds its directory alike: `field` and `what` are for messages.
  explicit RunLock(const std::filesystem::path& run_dir, std::string_view field = "run_dir",
                   std::string_view what = "run");
  ~RunLock();
  RunLock(RunLock&& other) noexcept : directory_(std::exchange(other.directory_, -1)) {}
  RunLock& operator=(RunLock&& other) noexcept {
    std::swap(directory_, other.directory_);
    return *this;
  }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int directory_ = -1;
};

}  // namespace coppice
