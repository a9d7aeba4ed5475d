#pragma once
// Whole small files as strings: config.json, an index, tokenizer files.
#include <cstdint>
#include <filesystem>
#include <string>

namespace coppice {

/// Errors    DataError where there is no such file, or it has more than `most_bytes` (a wrong file
///           given by mistake must not fill the memory); IoError where it cannot be read to its end
std::string read_small_file(const std::filesystem::path& path,
                            std::int64_t most_bytes = std::int64_t{1} << 30);

}  // namespace coppice
