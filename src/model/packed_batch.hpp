#pragma once
// One micro-batch as the model takes it: rows, who sees whom, and which rows predict which tokens.
// How groups were packed into it is the planner's matter.
#include <cstdint>
#include <vector>

#include "attention/attention_plan.hpp"
#include "attention/prediction_edges.hpp"
#include "attention/prefix_forest.hpp"

namespace coppice {

struct PackedBatch {
  std::vector<std::int32_t> token_ids;  // [rows]
  PrefixForest forest;
  AttentionPlan plan;
  std::vector<PredictionEdge> edges;  // by row; log-probs and entropies are in this order

  std::int64_t rows() const { return forest.rows(); }
};

}  // namespace coppice
