#include "rl/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.hpp"

namespace coppice {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw IoError(fmt::format("{}: {} ({}).", path.string(), what, std::strerror(errno)));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  file_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!file_) fail(path_, "the file cannot be created");
}

AtomicFile::~AtomicFile() {
  if (committed_) return;
  file_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void AtomicFile::write(std::string_view text) {
  file_.write(text.data(), std::ssize(text));
  if (!file_) fail(path_, "writing failed");
}

void AtomicFile::commit() {
  file_.close();
  if (!file_) fail(path_, "writing failed");
  const int descriptor = ::open(partial_.c_str(), O_RDONLY);
  if (descriptor < 0) fail(path_, "the file cannot be flushed");
  const int flushed = ::fsync(descriptor);
  ::close(descriptor);
  if (flushed != 0) fail(path_, "flushing to disk failed");
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error)
    throw IoError(fmt::format("{}: renaming failed ({}).", path_.string(), error.message()));
  committed_ = true;
}

}  // namespace coppice
