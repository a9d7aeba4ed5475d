#include "launch/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.hpp"

namespace coppice {

RunLock::RunLock(const std::filesystem::path& run_dir)
    : directory_(open(run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (directory_ >= 0 && flock(directory_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  if (directory_ >= 0) close(directory_);
  if (error == EWOULDBLOCK)
    throw ConfigError({fmt::format(
        "run_dir: {} is in use by another run (both would write the same checkpoints). Wait until "
        "it has ended, or give another run_dir.",
        run_dir.string())});
  throw IoError(fmt::format("{} cannot be locked: {}.", run_dir.string(), std::strerror(error)));
}

RunLock::~RunLock() {
  if (directory_ >= 0) close(directory_);
}

}  // namespace coppice
