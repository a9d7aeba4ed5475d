// Temporary names are ".NAME.PID-N.coppice-part". A living writer holds a lock on its temporary
// file or directory; the lock ends with its process, however that ends, so a name without a lock is
// a leftover.
#include "checkpoint/pending_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/error.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSuffix = ".coppice-part";

[[noreturn]] void throw_io(const fs::path& path, const char* what, int error) {
  throw IoError(fmt::format("{}: {}: {} ({}).", path.string(), what,
                            std::generic_category().message(error), error));
}

fs::path directory_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

// Where the directory is or will be: a link to an empty one keeps leading there.
fs::path place_of_directory(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  if (!error) return canonical;
  return path.has_filename() ? path : path.parent_path();
}

fs::path temporary_name(const fs::path& target, int attempt) {
  // A name may have 255 bytes; one as long as that has room for no more.
  constexpr std::size_t kMostOfName = 200;
  return directory_of(target) / fmt::format(".{}.{}-{}{}",
                                            target.filename().string().substr(0, kMostOfName),
                                            getpid(), attempt, kSuffix);
}

void sync_directory(const fs::path& directory) {
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_io(directory, "cannot be opened to flush it", errno);
  // Some file systems cannot flush a directory and say so by EINVAL; there the rename stands alone.
  const bool failed = fsync(descriptor) != 0 && errno != EINVAL;
  const int error = errno;
  close(descriptor);
  if (failed) throw_io(directory, "cannot be flushed to disk", error);
}

}  // namespace

PendingFile::PendingFile(fs::path target) : target_(std::move(target)) {
  for (int attempt = 0;; ++attempt) {
    temporary_ = temporary_name(target_, attempt);
    descriptor_ = open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) break;
    if (errno != EEXIST || attempt == 1000) throw_io(target_, "cannot be created", errno);
  }
  flock(descriptor_, LOCK_EX | LOCK_NB);  // a file system without locks only loses the clean-up
}

PendingFile::~PendingFile() {
  if (descriptor_ < 0) return;
  unlink(temporary_.c_str());
  close(descriptor_);
}

void PendingFile::reserve_space() {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) throw_io(target_, "its size cannot be found", errno);
  while (status.st_size > 0 && fallocate(descriptor_, 0, 0, status.st_size) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return;
    throw_io(target_, "the disk has no room for it", errno);
  }
}

void PendingFile::commit() {
  COPPICE_CHECK(descriptor_ >= 0, "{} was committed already", target_.string());
  if (fsync(descriptor_) != 0) throw_io(target_, "cannot be flushed to disk", errno);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw_io(target_, "cannot be put in its place", errno);
  }
  close(descriptor_);
  descriptor_ = -1;
  sync_directory(directory_of(target_));
}

PendingDirectory::PendingDirectory(fs::path target) : target_(place_of_directory(target)) {
  for (int attempt = 0;; ++attempt) {
    temporary_ = temporary_name(target_, attempt);
    if (mkdir(temporary_.c_str(), 0777) == 0) break;
    if (errno != EEXIST || attempt == 1000) throw_io(target_, "cannot be created", errno);
  }
  descriptor_ = open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) throw_io(target_, "cannot be created", errno);
  flock(descriptor_, LOCK_EX | LOCK_NB);
}

PendingDirectory::~PendingDirectory() {
  if (descriptor_ < 0) return;
  std::error_code ignored;  // a destructor has nobody to tell
  fs::remove_all(temporary_, ignored);
  close(descriptor_);
}

void PendingDirectory::commit() {
  COPPICE_CHECK(descriptor_ >= 0, "{} was committed already", target_.string());
  sync_directory(temporary_);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw_io(target_, "cannot be put in its place", errno);
  }
  close(descriptor_);
  descriptor_ = -1;
  sync_directory(directory_of(target_));
}

void write_file_atomically(const fs::path& target, std::string_view bytes) {
  PendingFile file(target);
  write_at(file.descriptor(), 0, bytes.data(), std::ssize(bytes), target);
  file.commit();
}

void remove_leftovers(const fs::path& directory) {
  std::error_code ignored;  // a leftover that cannot be removed harms nobody
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') || !name.ends_with(kSuffix)) continue;
    const int descriptor =
        open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), ignored);
    close(descriptor);
  }
}

void begin_write_out(int descriptor, std::int64_t offset, std::int64_t count) {
  const int saved = errno;
  sync_file_range(descriptor, offset, count, SYNC_FILE_RANGE_WRITE);
  errno = saved;
}

void write_at(int descriptor, std::int64_t offset, const void* bytes, std::int64_t count,
              const fs::path& path) {
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = pwrite(descriptor, from, static_cast<std::size_t>(count), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_io(path, "cannot be written", errno);
    from += written;
    offset += written;
    count -= written;
  }
}

}  // namespace coppice
