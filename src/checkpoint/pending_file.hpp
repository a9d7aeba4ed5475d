#pragma once
// A file or a directory that appears whole or not at all: it grows under a temporary name beside
// its place, is flushed to disk and then renamed. What a killed run leaves behind is recognised by
// its name and by a lock that died with the run.
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace coppice {

/// One file under construction. Without commit() it is removed, and the target stays as it was.
///
/// Errors    IoError with the path and the system's reason
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path target);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  const std::filesystem::path& target() const { return target_; }
  /// An empty file of this name exists; write it by this path or by descriptor().
  const std::filesystem::path& temporary() const { return temporary_; }
  int descriptor() const { return descriptor_; }

  /// Takes the disk space for the file's present size, so that a full disk shows before others
  /// write into it. Does nothing on a file system that cannot.
  void reserve_space();
  /// Flushes the file to disk, gives it its name, flushes the directory.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
};

/// One directory under construction; the target must not exist or be empty. Files inside are
/// flushed by whoever writes them (PendingFile).
class PendingDirectory {
 public:
  explicit PendingDirectory(std::filesystem::path target);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
};

/// Writes a small file whole: temporary name, flush, rename.
void write_file_atomically(const std::filesystem::path& target, std::string_view bytes);

/// Removes what dead runs left in `directory` under temporary names of this program.
void remove_leftovers(const std::filesystem::path& directory);

/// Asks the system to begin bringing what was written there to disk, and does not wait: the flush
/// at the end then finds little left to do. No more than a hint; where it is not known, nothing is
/// lost.
void begin_write_out(int descriptor, std::int64_t offset, std::int64_t count);

/// `bytes` at `offset` of an open file, whole. `path` is for the message.
void write_at(int descriptor, std::int64_t offset, const void* bytes, std::int64_t count,
              const std::filesystem::path& path);

}  // namespace coppice
