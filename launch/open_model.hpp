#pragma once
// From a model or checkpoint file to a model in memory.
#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.hpp"
#include "launch/session.hpp"
#include "model/policy_model.hpp"

namespace coppice {

/// An open file and the config of the model in it; no weights are read yet.
struct ModelFile {
  CheckpointReader reader;
  ModelConfig config;
};

/// Rank 0 prints the file's notices to standard error.
///
/// Errors    DataError, ConfigError, IoError with every problem of the file's header
ModelFile open_model(CheckpointReader reader, const Job& job);

/// A model of that shape, its weights not set.
std::unique_ptr<PolicyModel> allocate_model(const ModelFile& file, Session& session, DType compute,
                                            WithGradients gradients);

/// The file's weights, converted to `compute`.
///
/// Parallel  collective over the session's grid
/// Errors    DataError listing every dataset that is missing, extra, of another shape or damaged
std::unique_ptr<PolicyModel> load_model(const ModelFile& file, Session& session, DType compute,
                                        WithGradients gradients);

}  // namespace coppice
