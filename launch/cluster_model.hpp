#pragma once
// What a training step takes on a cluster, predicted from shapes and rates alone: nothing is run.
// The rank that is waited for is followed through its micro-batches, op by op; what ranks send is
// what model/communication_plan counts. The shapes of a step come from cluster_shape, rates from
// cluster_profile; every rate is held to the device's peak, so MFU cannot be above 1.
#include <cstdint>
#include <vector>

#include "launch/cluster_profile.hpp"
#include "model/communication_plan.hpp"

namespace coppice {

/// A micro-batch as one rank runs it.
struct MicrobatchShape {
  double count = 1;       ///< how many such there are
  std::int64_t rows = 0;  ///< alignment rows among them
  std::int64_t edge_rows = 0;
  std::int64_t visible_pairs = 0;
  std::int64_t ranges = 0;      ///< (range of queries, range of keys it sees)
  std::int64_t range_rows = 0;  ///< query rows of these, summed
  PlannedTraffic traffic{};     ///< what the rank sends in it
};

/// A step of the rank that all wait for.
struct StepShape {
  ModelConfig model;
  DType dtype = DType::kF32;
  Recompute recompute = Recompute::kNone;
  Zero zero = Zero::kOptimizer;
  GridSizes grid;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  bool overlap = true;  ///< parallel.overlap
  std::vector<MicrobatchShape> microbatches{};
  PlannedTraffic update_traffic{};  ///< what it sends behind the last of them
  double executed_flops = 0;        ///< of all ranks, as in the metrics
};

/// What goes over one axis of the grid.
struct AxisPrediction {
  GridAxis axis = GridAxis::kTensor;
  std::int64_t bytes = 0;     ///< payload of the rank, all micro-batches
  double seconds = 0;         ///< in collectives
  double waited_seconds = 0;  ///< of these, what compute does not hide
};

/// Seconds of a step by what they go into; their sum is the compute of the step.
struct ComputeSeconds {
  double gemm = 0;  ///< linears
  double attention = 0;
  double head = 0;        ///< products with the vocabulary, and softmax
  double memory_ops = 0;  ///< norms, RoPE, SwiGLU, sums of rows
  double optimizer = 0;
};

struct StepPrediction {
  double step_seconds = 0;
  /// As the metrics cut a step; reduce is 0 for one rank.
  double forward_seconds = 0, backward_seconds = 0, reduce_seconds = 0, optimizer_seconds = 0;
  ComputeSeconds compute;
  std::vector<AxisPrediction> axes;  ///< those that are used
  double mfu = 0;                    ///< executed_flops / (step_seconds x ranks x peak)
};

/// Errors    ContractError if the grid has ranks for which the cluster has no link
/// Oracle    tests/launch/cluster_model_test.cpp, by hand
StepPrediction predict_step(const StepShape& step, const ClusterProfile& cluster);

/// c [m, n] from a depth of k: the longer of flops / rate and of the time to move all three
/// matrices once, and a call.
double gemm_seconds(const ClusterProfile& cluster, const RateBySize& rates, std::int64_t m,
                    std::int64_t n, std::int64_t k, DType dtype);

}  // namespace coppice
