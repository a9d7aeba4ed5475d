#include "checkpoint/small_file.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "core/error.hpp"

namespace coppice {

std::string read_small_file(const std::filesystem::path& path, std::int64_t most_bytes) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) {
    throw DataError({fmt::format("{}: cannot be read: {}.", path.string(), error.message())});
  }
  if (bytes > static_cast<std::uintmax_t>(most_bytes)) {
    throw DataError({fmt::format("{}: has {} bytes; at most {} are read from a file of its kind.",
                                 path.string(), bytes, most_bytes)});
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!stream) throw IoError(fmt::format("{}: cannot be read to its end.", path.string()));
  return text;
}

}  // namespace coppice
