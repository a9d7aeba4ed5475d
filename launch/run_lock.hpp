#pragma once
// One run in a run directory at a time: two would overwrite each other's metrics and checkpoints.
#include <filesystem>

namespace coppice {

/// Holds a run directory for this process, until it ends however it ends. Leaves no file.
///
/// Errors    ConfigError when another process holds it; IoError when it cannot be locked at all
class RunLock {
 public:
  /// The directory exists.
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int directory_ = -1;
};

}  // namespace coppice
