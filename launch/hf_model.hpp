#pragma once
// A Hugging Face directory as a model: its config, its weights matched with what that config asks
// for, and the files that travel along. Opened alike by `import` and by a run that reads it without
// an import, so that both refuse the same directory in the same words.
#include <filesystem>
#include <vector>

#include "checkpoint/hf_weights.hpp"
#include "model/model_config.hpp"

namespace coppice {

struct HfModel {
  std::filesystem::path directory;
  ModelConfig config;
  SafetensorsModel files;
  std::vector<AttachedFile> tokenizer;
  std::vector<HfWeight> weights;  ///< of `files`, in the order of tensors_of(config)
};

/// Opens every file; reads no values (but the head's and the embedding's where both are there and
/// must be the same).
///
/// Errors    DataError with every problem of config.json, index, shards and tensors
HfModel open_hf_model(const std::filesystem::path& directory);

}  // namespace coppice
