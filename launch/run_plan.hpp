#pragma once
// A dry run: every step of a run packed as training packs it on every rank, the memory of the
// fullest rank and what the ranks send. How it is shown is plan_command's business.
#include <string>
#include <vector>

#include "launch/run_config.hpp"
#include "model/communication_plan.hpp"
#include "model/memory_plan.hpp"
#include "rl/group_source.hpp"
#include "rl/step_batch.hpp"

namespace coppice {

/// What one rank runs; tensor ranks have the same rows.
struct RankWork {
  int dp_rank = 0, cp_rank = 0;
  PackedWork work;
  std::int64_t alignment_rows = 0;
};

/// Figures as the metrics name and count them.
struct PlannedStep {
  std::int64_t step = 0;
  std::int64_t groups = 0, responses = 0, loss_tokens = 0;
  std::int64_t microbatches = 0;  ///< of each rank
  PackedWork work;
  std::int64_t logical_rows = 0, alignment_rows = 0;
  std::int64_t fallbacks = 0;  ///< of this step alone
  double executed_flops = 0, repeated_flops = 0;
  std::string sharing;
  /// Predicted time of the slowest rank over that of a perfect balance.
  double imbalance = 1;
  std::vector<RankWork> ranks;  ///< by data, then context rank; empty where nothing runs
  PlannedTraffic traffic;       ///< bytes of all ranks; calls of the rank that has the most
};

struct RunPlan {
  std::vector<PlannedStep> steps;
  PlannedStep total;  ///< sums over the steps; `step` is their number
  MemoryPlan memory;  ///< of the fullest rank
  /// FLOPs with every prompt repeated over those of the plan.
  double predicted_speedup = 1;
};

/// Effects   takes groups from the source
RunPlan plan_run(const RunConfig& config, const ModelConfig& model, GroupSource& source);

}  // namespace coppice
