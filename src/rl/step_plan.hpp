#pragma once
// Who runs what of a step: whole groups dealt to data ranks, each rank's share cut into
// micro-batches, equally many on all. Made identically on every rank from the same groups, with no
// messages; totals are those of the step, whatever the grid.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rl/microbatch_planner.hpp"

namespace coppice {

struct StepPlan {
  /// Of each data rank: its groups in the step's order. Ranks with fewer micro-batches than the
  /// fullest end with empty ones.
  std::vector<MicrobatchPlan> ranks;

  // Of all ranks together; the grid never changes them.
  PackedWork work;
  std::int64_t fallbacks = 0, grouped_parts = 0, repeated_parts = 0;

  /// Of all data and context ranks together.
  std::int64_t alignment_rows = 0;
  /// Predicted time of the slowest rank over that of a perfect balance: context ranks wait for each
  /// other in every micro-batch, data ranks at the end of the step. 1 is perfect.
  double imbalance = 1.0;

  /// Of each data rank.
  std::int64_t microbatches() const { return std::ssize(ranks.front().microbatches); }
  std::string_view sharing_name() const {
    return coppice::sharing_name(grouped_parts, repeated_parts);
  }
};

/// Groups go to ranks largest cost first, each to the least loaded; a prompt costs once where it is
/// packed once.
///
/// Shapes    data_ranks plans of equally many micro-batches
/// Repeats   a function of its arguments only; of `rows`, cp_rank does not matter
/// Errors    ContractError for a group that check_row_budget() refuses
/// Oracle    tests/rl/step_plan_test.cpp
StepPlan plan_step(std::span<const Group> groups, const BatchingConfig& config, EdgeTokens edges,
                   const PackingCost& cost, int data_ranks = 1, const RowPlace& rows = {});

/// Which groups each data rank runs, in the step's order.
std::vector<std::vector<std::int32_t>> deal_groups(std::span<const double> costs, int data_ranks);

}  // namespace coppice
