#pragma once
// What of a Hugging Face directory is not weights: the tokenizer's files, which travel through our
// files as bytes, and config.json, whose dtype follows the weights.
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "core/dtype.hpp"

namespace coppice {

/// The tokenizer's files in `directory`, and generation_config.json.
std::vector<AttachedFile> tokenizer_files_of(const std::filesystem::path& directory);

/// The files of the directory that a command reads: config, weights, and what travels along.
std::vector<std::filesystem::path> inputs_in(const std::filesystem::path& directory);

/// config.json with its dtype ("dtype" or "torch_dtype", whichever is there) set to that of the
/// weights; byte for byte the same where it says so already.
std::string config_with_dtype(const std::string& config_json, DType dtype);

}  // namespace coppice
