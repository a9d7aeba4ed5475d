#pragma once
// Whole small files as strings: config.json, an index, tokenizer files.
#include <cstdint>
#include <filesystem>
#include <string>

namespace coppice {

/// Errors    IoError where it cannot be read; DataError above `most_bytes`, so that a wrong file
///           given by mistake does not fill the memory
std::string read_small_file(const std::filesystem::path& path,
                            std::int64_t most_bytes = std::int64_t{1} << 30);

}  // namespace coppice
