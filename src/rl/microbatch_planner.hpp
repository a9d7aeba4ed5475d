#pragma once
// Cuts the groups of a step into micro-batches under a strict budget of rows, and packs each: with
// the prompt once per group (grouped), once per response (repeated), or whichever is cheaper. The
// numbers of a step (weights, denominators) are known before and do not depend on the cut.
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "model/flops.hpp"
#include "model/packed_batch.hpp"
#include "rl/rollouts.hpp"

namespace coppice {

enum class Sharing { kGrouped, kRepeated, kAuto };

struct BatchingConfig {
  Sharing sharing = Sharing::kAuto;
  std::int64_t max_rows_per_microbatch = 16384;
};

/// Which response tokens get an edge: those in the loss (training) or all (scoring).
enum class EdgeTokens { kInLoss, kAll };

/// Sizes of what a micro-batch runs, as the metrics count them.
PackedWork work_of(const PackedBatch& batch);
void add(PackedWork& sum, const PackedWork& work);

/// What it costs to run packed rows, in any unit (FLOPs of the model, say).
using PackingCost = std::function<double(const PackedWork&)>;

/// Responses [first_response, first_response + response_count) of one group, packed together.
struct MicrobatchPart {
  std::int32_t group;  ///< index in the step's groups
  std::int32_t first_response;
  std::int32_t response_count;
  bool grouped;  ///< the prompt once; else once per response
};

struct Microbatch {
  std::vector<MicrobatchPart> parts;
  std::int64_t rows = 0;
};

struct MicrobatchPlan {
  std::vector<Microbatch> microbatches;
  std::int64_t fallbacks = 0;  ///< groups that AUTO had to cut into several grouped parts
  std::int64_t grouped_parts = 0;
  std::int64_t repeated_parts = 0;

  /// "GROUPED", "REPEATED", "MIXED"; empty without parts.
  std::string_view sharing_name() const;
};

/// Refuses groups that can never fit, before anything runs.
///
/// Errors    ConfigError naming every such group, its size and what would fit
void check_row_budget(std::span<const Group> groups, const BatchingConfig& config);

/// Parts in the order of the groups; a micro-batch is closed when the next part does not fit.
///
/// Errors    ContractError for a group that check_row_budget() refuses
MicrobatchPlan plan_microbatches(std::span<const Group> groups, const BatchingConfig& config,
                                 EdgeTokens edges, const PackingCost& cost);

/// The rows of one micro-batch. Edges name groups by their index in `groups`.
PackedBatch pack(std::span<const Group> groups, const Microbatch& microbatch, EdgeTokens edges);

/// Rows as if the prompt were repeated for every response.
std::int64_t logical_rows(const Group& group);

}  // namespace coppice
