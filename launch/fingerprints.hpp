#pragma once
// Hashes of what a command was given, by which the ranks of a job find out that one of them was
// given something else: an older copy of a file, another config.
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.hpp"
#include "launch/job.hpp"

namespace coppice {

Fingerprint fingerprint_of_text(std::string what, std::string_view text);

/// Of a file's bytes.
///
/// Errors    IoError where it cannot be read
Fingerprint fingerprint_of_file(std::string what, const std::filesystem::path& path);

/// Of a model or checkpoint: its header, and each dataset's name, shape, type and checksum; without
/// checksums the file's size. Reads no values.
Fingerprint fingerprint_of_model(std::string what, const CheckpointReader& reader);

}  // namespace coppice
