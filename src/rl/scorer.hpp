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
#include "parallel/process_grid.hpp"
#include "rl/microbatch_planner.hpp"
#include "rl/rollout_writer.hpp"

namespace coppice {

/// Of all ranks together.
struct ScoreReport {
  PackedWork work;
  std::int64_t logical_rows = 0;
  std::int64_t alignment_rows = 0;
  std::int64_t microbatches = 0;  ///< of each data rank
  std::int64_t fallbacks = 0;
  std::string_view sharing;  ///< as in the metrics
};

/// Called with (micro-batches done, all) after each.
using ScoreProgress = std::function<void(std::int64_t, std::int64_t)>;

/// Shapes    one GroupScores per group, in order
/// Parallel  groups are dealt over data ranks, rows over context ranks; every rank returns all
/// Errors    ConfigError where a group does not fit the row budget
/// Oracle    tests/rl/scorer_test.cpp, EqualsEachResponseAlone
std::vector<GroupScores> score_groups(ExecContext& ctx, ProcessGrid& grid, PolicyModel& model,
                                      std::span<const Group> groups, const BatchingConfig& batching,
                                      double temperature, ScoreReport* report = nullptr,
                                      const ScoreProgress& progress = {});
/// On one rank.
std::vector<GroupScores> score_groups(ExecContext& ctx, PolicyModel& model,
                                      std::span<const Group> groups, const BatchingConfig& batching,
                                      double temperature, ScoreReport* report = nullptr,
                                      const ScoreProgress& progress = {});

}  // namespace coppice
