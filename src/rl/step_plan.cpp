#include "rl/step_plan.hpp"

#include <algorithm>
#include <numeric>

namespace coppice {
namespace {

// How a micro-batch's rows fall on its context ranks.
struct RowDeal {
  std::int64_t alignment_rows = 0;
  double imbalance = 1.0;  // the fullest rank's cost over the mean
};

RowDeal deal_rows(std::span<const Group> groups, const Microbatch& microbatch,
                  const RowPlace& rows) {
  if (rows.cp_size == 1) return {alignment_rows(microbatch.work.rows, rows.row_multiple), 1.0};
  const RowPartition partition(forest_of(groups, microbatch), rows.cp_size, rows.costs);
  RowDeal deal;
  for (const std::int64_t count : partition.rank_rows())
    deal.alignment_rows += alignment_rows(count, rows.row_multiple);
  const auto costs = partition.rank_costs();
  const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
  deal.imbalance = *std::max_element(costs.begin(), costs.end()) * rows.cp_size / sum;
  return deal;
}

}  // namespace

std::vector<std::vector<std::int32_t>> deal_groups(std::span<const double> costs, int data_ranks) {
  COPPICE_CHECK(data_ranks >= 1, "groups dealt to {} ranks", data_ranks);
  std::vector<std::int32_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return costs[static_cast<std::size_t>(a)] > costs[static_cast<std::size_t>(b)];
  });
  std::vector<double> load(static_cast<std::size_t>(data_ranks), 0.0);
  std::vector<std::vector<std::int32_t>> dealt(load.size());
  for (const std::int32_t group : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += costs[static_cast<std::size_t>(group)];
    dealt[static_cast<std::size_t>(least - load.begin())].push_back(group);
  }
  for (auto& groups : dealt) std::sort(groups.begin(), groups.end());
  return dealt;
}

StepPlan plan_step(std::span<const Group> groups, const BatchingConfig& config, EdgeTokens edges,
                   const PackingCost& cost, int data_ranks, const RowPlace& rows) {
  const std::vector<GroupParts> parts = part_groups(groups, config, edges, cost);
  std::vector<double> costs;
  for (const GroupParts& group : parts) costs.push_back(group.cost);

  StepPlan plan;
  std::size_t most = 0;
  for (const auto& chosen : deal_groups(costs, data_ranks)) {
    plan.ranks.push_back(fill_microbatches(parts, chosen, config));
    most = std::max(most, plan.ranks.back().microbatches.size());
  }
  double slowest = 0.0, sum = 0.0;
  for (MicrobatchPlan& rank : plan.ranks) {
    double waited = 0.0;
    for (const Microbatch& microbatch : rank.microbatches) {
      const RowDeal deal = deal_rows(groups, microbatch, rows);
      plan.alignment_rows += deal.alignment_rows;
      sum += cost(microbatch.work);
      waited += cost(microbatch.work) * deal.imbalance;
    }
    slowest = std::max(slowest, waited);
    rank.microbatches.resize(most);
    add(plan.work, rank.work);
    plan.fallbacks += rank.fallbacks;
    plan.grouped_parts += rank.grouped_parts;
    plan.repeated_parts += rank.repeated_parts;
  }
  if (sum > 0) plan.imbalance = slowest * data_ranks / sum;
  return plan;
}

}  // namespace coppice
