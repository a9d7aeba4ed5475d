#pragma once
// A file that is damaged in place and mended again, thousands of times a second: writing it anew
// each time would wait for the disk.
#include <fcntl.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "core/rng.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {

class DamagedFile {
 public:
  explicit DamagedFile(const std::filesystem::path& path)
      : whole_(read_file(path)), descriptor_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("cannot open " + path.string());
  }
  ~DamagedFile() { close(descriptor_); }
  DamagedFile(const DamagedFile&) = delete;
  DamagedFile& operator=(const DamagedFile&) = delete;

  const std::string& whole() const { return whole_; }

  /// Calls `body` while bytes from `at` on are others.
  template <class Body>
  void with_bytes(std::size_t at, const std::string& bytes, const Body& body) const {
    put(at, bytes);
    body();
    put(at, whole_.substr(at, bytes.size()));
  }
  template <class Body>
  void with_flip(std::size_t bit, const Body& body) const {
    with_bytes(bit / 8, std::string(1, static_cast<char>(whole_[bit / 8] ^ (1 << bit % 8))), body);
  }
  template <class Body>
  void with_length(std::size_t length, const Body& body) const {
    if (ftruncate(descriptor_, static_cast<off_t>(length)) != 0) throw std::runtime_error("cut");
    body();
    put(length, whole_.substr(length));
  }

  /// Calls `body(length)` for the file cut at every 4 KiB, and without its last byte.
  template <class Body>
  void for_each_cut(const Body& body) const {
    for (std::size_t length = 0; length < whole_.size(); length += 4096)
      with_length(length, [&] { body(length); });
    with_length(whole_.size() - 1, [&] { body(whole_.size() - 1); });
  }
  /// Calls `body(bit)` for `count` random bits of the first `bytes` bytes, one after the other.
  template <class Body>
  void for_random_flips(std::uint64_t count, std::size_t bytes, const Body& body) const {
    const RandomStream stream(1, "flips");
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto bit = static_cast<std::size_t>(stream.below(8 * bytes, i));
      with_flip(bit, [&] { body(bit); });
    }
  }

 private:
  void put(std::size_t at, const std::string& bytes) const {
    if (pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at)) !=
        static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("write");
  }

  std::string whole_;
  int descriptor_;
};

}  // namespace coppice::test
