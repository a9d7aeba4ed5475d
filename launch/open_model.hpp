#pragma once
// From a model file, a checkpoint or a Hugging Face directory to a model in memory.
#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "launch/hf_model.hpp"
#include "launch/session.hpp"
#include "model/policy_model.hpp"

namespace coppice {

/// Open files and the config of the model in them; no weights are read yet. Without files
/// (std::monostate) it is a shape that can only be planned.
struct ModelFile {
  std::variant<CheckpointReader, HfModel, std::monostate> source;
  ModelConfig config;

  /// Nothing where it is the other.
  const CheckpointReader* checkpoint() const { return std::get_if<CheckpointReader>(&source); }
  const HfModel* hf() const { return std::get_if<HfModel>(&source); }

  const std::filesystem::path& path() const;
  const std::vector<AttachedFile>& tokenizer() const;
};

/// Rank 0 prints the file's notices to standard error.
///
/// Errors    DataError, ConfigError, IoError with every problem of the file's header
ModelFile open_model(CheckpointReader reader, const Job& job);
ModelFile open_model(HfModel hf);

/// A model of that shape, its weights not set.
std::unique_ptr<PolicyModel> allocate_model(const ModelFile& file, Session& session, DType compute,
                                            WithGradients gradients);

/// The file's weights, converted to `compute`. Of a Hugging Face directory each rank reads what it
/// holds, and the bits are those that an import would have brought.
///
/// Parallel  collective over the session's grid
/// Memory    a block of a few MiB above the model
/// Errors    DataError listing every dataset that is missing, extra, of another shape or damaged;
///           IoError, on all ranks, where a rank cannot read its part of a directory
std::unique_ptr<PolicyModel> load_model(const ModelFile& file, Session& session, DType compute,
                                        WithGradients gradients);

}  // namespace coppice
