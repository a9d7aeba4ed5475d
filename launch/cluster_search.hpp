#pragma once
// Every grid of a number of ranks, predicted: which is fastest among those whose memory fits.
#include <cstdint>
#include <vector>

#include "launch/cluster_shape.hpp"

namespace coppice {

struct GridChoice {
  GridSizes grid;
  Recompute recompute = Recompute::kNone;
  MemoryPlan memory{};
  bool fits = false;
  StepPrediction prediction{};
};

/// All products tensor x context x data = ranks that the model allows, those that fit first, the
/// fastest first. Of each grid the first of NONE, SELECTIVE and BLOCK that fits stands here (each
/// is slower than the one before), BLOCK where none does.
///
/// Parallel  sequence parallelism as the config has it, on where its own grid has one tensor rank
std::vector<GridChoice> search_grids(const RunConfig& config, const ModelConfig& model,
                                     const StepBatch& batch, const ClusterProfile& cluster,
                                     std::int64_t ranks);

}  // namespace coppice
