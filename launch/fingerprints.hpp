#pragma once
// Hashes of what a command was given, by which the ranks of a job find out that one of them was
// given something else: an older copy of a file, another config.
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.hpp"
#include "launch/hf_model.hpp"
#include "launch/job.hpp"

namespace coppice {

Fingerprint fingerprint_of_text(std::string what, std::string_view text);

/// Of a file's bytes.
///
/// Errors    IoError where it cannot be read
Fingerprint fingerprint_of_file(std::string what, const std::filesystem::path& path);

/// Of a model or checkpoint: its header, and each dataset's name, shape, type and checksum; without
/// checksums the file's bytes. Else reads no values.
Fingerprint fingerprint_of_model(std::string what, const CheckpointReader& reader);

/// Of a Hugging Face directory: config.json, the files that travel along, the size of each file of
/// weights, and each weight's name, type, shape, file and place. Reads no values.
Fingerprint fingerprint_of_hf(std::string what, const HfModel& model);

/// Of every byte of its weights. Ranks that have the very same files open (on one machine, by
/// device and inode) share the reading of them, so each copy is read once; where all do, nothing is
/// read at all. The ranks must have agreed on fingerprint_of_hf() before.
///
/// Parallel  collective over `world`
/// Errors    IoError, on all ranks, where one cannot read its part
Fingerprint fingerprint_of_hf_values(std::string what, const HfModel& model, Communicator& world);

}  // namespace coppice
