#pragma once
// Packs the rows of one micro-batch for one rank: tokens, positions, who sees whom, edges. Every
// rank packs its own rows from the same groups, so no tokens are sent; which groups a micro-batch
// holds is the planners' matter (microbatch_planner.hpp, step_plan.hpp).
#include <cstdint>
#include <span>
#include <vector>

#include "attention/row_partition.hpp"
#include "model/flops.hpp"
#include "model/packed_batch.hpp"
#include "parallel/parallel_context.hpp"
#include "rl/rollouts.hpp"

namespace coppice {

/// Which response tokens get an edge: those in the loss (training) or all (scoring).
enum class EdgeTokens { kInLoss, kAll };

bool has_edge(const Response& response, std::size_t token, EdgeTokens edges);

/// Responses [first_response, first_response + response_count) of one group, packed together.
struct MicrobatchPart {
  std::int32_t group;  ///< index in the step's groups
  std::int32_t first_response;
  std::int32_t response_count;
  bool grouped;  ///< the prompt once; else once per response
};

/// The rows of one forward and backward of one data rank. Without parts it holds its place among
/// those of other data ranks and the model is not called for it, on none of its ranks.
struct Microbatch {
  std::vector<MicrobatchPart> parts;
  PackedWork work;  ///< sums over the parts

  bool empty() const { return parts.empty(); }
};

/// Where a rank stands among the context ranks that share a micro-batch's rows.
struct RowPlace {
  int cp_rank = 0;
  int cp_size = 1;
  std::int64_t row_multiple = 1;  ///< a rank's rows are made up to a multiple of it
  RowCosts costs{};
};

/// The place of the rank that `parallel` belongs to. Rows are made up to a multiple of the tensor
/// ranks where these shard rows.
RowPlace row_place(const ModelConfig& config, const ParallelContext& parallel);

/// Rows that see only themselves, added to `rows` for the multiple. No rows need none.
std::int64_t alignment_rows(std::int64_t rows, std::int64_t row_multiple);

/// Who descends from whom among all rows of a micro-batch.
PrefixForest forest_of(std::span<const Group> groups, const Microbatch& microbatch);

/// The rows of one micro-batch that are the rank's. Edges name groups by their index in `groups`;
/// an edge belongs to the rank that has its row.
///
/// Parallel  a function of its arguments only; the ranks' rows together are those of one rank
/// Oracle    tests/rl/packing_test.cpp, the mask pair by pair
PackedBatch pack(std::span<const Group> groups, const Microbatch& microbatch, EdgeTokens edges,
                 const RowPlace& place = {});

/// Sizes of what a rank runs, as the metrics count them: without alignment rows.
PackedWork work_of(const PackedBatch& batch);
void add(PackedWork& sum, const PackedWork& work);

/// Sizes of a part without packing it.
PackedWork work_of(const Group& group, const MicrobatchPart& part, EdgeTokens edges);

}  // namespace coppice
