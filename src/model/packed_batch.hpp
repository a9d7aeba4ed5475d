#pragma once
// One micro-batch as the model takes it: the rows of one rank, who sees whom, and which rows
// predict which tokens. How groups were packed and dealt to ranks is the planner's matter.
#include <cstdint>
#include <vector>

#include "attention/attention_plan.hpp"
#include "attention/prediction_edges.hpp"
#include "attention/shared_rows.hpp"

namespace coppice {

/// Layout    tensor-parallel ranks have the same batch; rows of a context rank keep packed order
struct PackedBatch {
  std::vector<std::int32_t> token_ids;  // [rows]
  std::vector<std::int32_t> positions;  // [rows] in their sequences
  AttentionPlan plan;                   // key space 0: own rows; 1, where shared.any(): gathered
  std::vector<PredictionEdge> edges;    // by row; log-probs and entropies are in this order
  SharedRows shared;
  /// The last rows, which make the number of rows divisible: token 0 at position 0, seeing only
  /// themselves, predicting nothing, counted nowhere.
  std::int64_t alignment_rows = 0;

  std::int64_t rows() const { return std::ssize(token_ids); }
};

}  // namespace coppice
