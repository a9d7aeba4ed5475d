#pragma once
// Cuts groups into micro-batches under a strict budget of rows: each group with its prompt once
// (grouped), once per response (repeated), or whichever costs less. How a group is cut depends on
// the group alone, so what a step runs in all does not depend on which rank runs it. The numbers of
// a step (weights, denominators) are known before and do not depend on the cut either.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rl/packing.hpp"
#include "rl/packing_cost.hpp"

namespace coppice {

enum class Sharing { kGrouped, kRepeated, kAuto };

struct BatchingConfig {
  Sharing sharing = Sharing::kAuto;
  std::int64_t max_rows_per_microbatch = 16384;
};

/// A group as it will be packed: parts that each stay in one micro-batch.
struct GroupParts {
  struct Sized {
    MicrobatchPart part;
    PackedWork work;
  };
  std::vector<Sized> parts;
  double cost = 0.0;
  bool is_fallback = false;  ///< AUTO had to cut it into several grouped parts
};

struct MicrobatchPlan {
  std::vector<Microbatch> microbatches;
  PackedWork work;             ///< of all micro-batches
  std::int64_t fallbacks = 0;  ///< groups that AUTO had to cut into several grouped parts
  std::int64_t grouped_parts = 0;
  std::int64_t repeated_parts = 0;

  /// "GROUPED", "REPEATED", "MIXED"; empty without parts.
  std::string_view sharing_name() const;
};

std::string_view sharing_name(std::int64_t grouped_parts, std::int64_t repeated_parts);

/// Refuses groups that can never fit, before anything runs.
///
/// Errors    ConfigError naming every such group, its size and what would fit
void check_row_budget(std::span<const Group> groups, const BatchingConfig& config);

/// Every group cut into parts.
///
/// Errors    ContractError for a group that check_row_budget() refuses
std::vector<GroupParts> part_groups(std::span<const Group> groups, const BatchingConfig& config,
                                    EdgeTokens edges, const PackingCost& cost);

/// The micro-batches of some groups: parts in the order given; a micro-batch is closed when the
/// next part does not fit.
MicrobatchPlan fill_microbatches(std::span<const GroupParts> parts,
                                 std::span<const std::int32_t> chosen,
                                 const BatchingConfig& config);

/// The two together, for all groups in their order: a step of one data rank.
MicrobatchPlan plan_microbatches(std::span<const Group> groups, const BatchingConfig& config,
                                 EdgeTokens edges, const PackingCost& cost);

/// Rows as if the prompt were repeated for every response.
std::int64_t logical_rows(const Group& group);

}  // namespace coppice
