#pragma once
// What `train` and `plan` read before any work, so that both refuse the same input in the same
// words: the model's config and the rollouts, checked against each other and the row budget.
#include <optional>

#include "launch/open_model.hpp"
#include "launch/run_config.hpp"
#include "rl/group_source.hpp"

namespace coppice {

struct RunData {
  ModelFile model;
  RolloutsSource source;
};

/// With `resumed`, a checkpoint to go on from, it takes the place of the run's model file; with
/// `shape`, a config.json that is planned without weights does.
///
/// Errors    DataError or ConfigError with every problem of the model file's header, of the grid
///           for that model and, whatever these say, of the rollouts
RunData open_run_data(const RunConfig& config, const Job& job,
                      std::optional<CheckpointReader> resumed = {},
                      std::optional<ModelConfig> shape = {});

}  // namespace coppice
