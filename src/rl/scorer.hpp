#pragma once
// Log-probabilities and entropies of recorded responses under a model: `coppice score`, and later
// whoever needs the figures of a frozen model. Packs like training does, with an edge for every
// response token, masked or not.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/exec_context.hpp"
#include "model/policy_model.hpp"
#include "rl/microbatch_planner.hpp"
#include "rl/rollout_writer.hpp"

namespace coppice {

/// What packed rows cost the model: its FLOPs.
PackingCost packing_cost(const ModelConfig& config);

struct ScoreReport {
  PackedWork work;
  std::int64_t logical_rows = 0;
  std::int64_t microbatches = 0;
  std::int64_t fallbacks = 0;
  std::string_view sharing;  ///< as in the metrics
};

/// `progress`, where given, is called with (micro-batches done, all) after each.
///
/// Shapes    one GroupScores per group, in order
/// Errors    ConfigError where a group does not fit the row budget
/// Oracle    tests/rl/scorer_test.cpp, EqualsEachResponseAlone
std::vector<GroupScores> score_groups(
    ExecContext& ctx, PolicyModel& model, std::span<const Group> groups,
    const BatchingConfig& batching, double temperature, ScoreReport* report = nullptr,
    const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace coppice
