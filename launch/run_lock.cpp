#include "launch/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.hpp"

namespace coppice {

RunLock::RunLock(const std::filesystem::path& run_dir, std::string_view field,
                 std::string_view what)
    : directory_(open(run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (directory_ >= 0 && flock(directory_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  if (directory_ >= 0) close(directory_);
  if (error == EWOULDBLOCK)
    throw ConfigError(
        {fmt::format("{}: {} is in use by another {} (both would write the same files). Wait until "
                     "it has ended, "
                     "or give another {}.",
                     field, run_dir.string(), what, field)});
  throw IoError(fmt::format("{} cannot be locked: {}.", run_dir.string(), std::strerror(error)));
}

RunLock::~RunLock() {
  if (directory_ >= 0) close(directory_);
}

}  // namespace coppice
