// Steps worked out by hand on a cluster of round numbers, and what no prediction may be.
#include "launch/cluster_model.hpp"

#include <gtest/gtest.h>

#include "core/rng.hpp"
#include "launch/cluster_examples.hpp"
#include "model/flops.hpp"

namespace coppice::test {
namespace {

ModelConfig small_model() {
  ModelConfig model;
  model.hidden_size = 64;
  model.intermediate_size = 128;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 1;
  model.head_dim = 32;
  model.vocab_size = 256;
  model.tie_word_embeddings = true;
  return model;
}

// One sequence of 16 tokens, 16 of which predict one.
StepShape small_step() {
  StepShape step;
  step.model = small_model();
  step.microbatches.push_back(
      {.rows = 16, .edge_rows = 16, .visible_pairs = 136, .ranges = 1, .range_rows = 16});
  step.executed_flops = executed_flops(step.model, {16, 136, 16});
  return step;
}

// FLOPs of a layer's linears, forward: q, k, v 2 x 16 x 128 x 64, o 2 x 16 x 64 x 64, gate and up
// 2 x 16 x 256 x 64, down 2 x 16 x 64 x 128.
constexpr double kLinears = 262144 + 131072 + 524288 + 262144;
constexpr double kAttention = 4 * 2 * 32 * 136.0;  // of a layer, forward
constexpr double kHead = 2 * 16 * 256 * 64.0;

// Mutations seen red: backward's weight gradients left out; attention's backward twice the forward.
TEST(ClusterModel, AddsUpTheProductsOfAStep) {
  const StepPrediction step = predict_step(small_step(), round_cluster());
  EXPECT_NEAR(step.compute.gemm, 3 * 3 * kLinears / 1e9, 1e-12);
  EXPECT_NEAR(step.compute.attention, 3 * 3.5 * kAttention / 1e9, 1e-12);
  EXPECT_NEAR(step.compute.head, 3 * kHead / 1e9, 1e-12);
  EXPECT_NEAR(step.forward_seconds, (3 * kLinears + 3 * kAttention + kHead) / 1e9, 1e-12);
  EXPECT_NEAR(step.backward_seconds, (6 * kLinears + 7.5 * kAttention + 2 * kHead) / 1e9, 1e-12);
  EXPECT_EQ(step.reduce_seconds, 0);
  EXPECT_TRUE(step.axes.empty());
  EXPECT_NEAR(step.step_seconds, step.forward_seconds + step.backward_seconds, 1e-12);
  // Attention's backward makes 5 products where 4 are counted.
  EXPECT_NEAR(
      step.mfu,
      (9 * kLinears + 9 * kAttention + 3 * kHead) / (9 * kLinears + 10.5 * kAttention + 3 * kHead),
      1e-12);
}

// Mutation seen red: down's product made again too.
TEST(ClusterModel, RunsForwardAgainWhereItRecomputes) {
  StepShape step = small_step();
  const ClusterProfile cluster = round_cluster();
  const double none = predict_step(step, cluster).backward_seconds;
  step.recompute = Recompute::kSelective;
  EXPECT_NEAR(predict_step(step, cluster).backward_seconds - none, 3 * (kLinears - 262144) / 1e9,
              1e-12);
  step.recompute = Recompute::kBlock;
  EXPECT_NEAR(predict_step(step, cluster).backward_seconds - none,
              3 * (kLinears - 262144 + kAttention) / 1e9, 1e-12);
}

TEST(ClusterModel, CountsEachMicrobatchAsOftenAsItStands) {
  StepShape step = small_step();
  const double one = predict_step(step, round_cluster()).forward_seconds;
  step.microbatches[0].count = 2.5;
  EXPECT_NEAR(predict_step(step, round_cluster()).forward_seconds, 2.5 * one, 1e-12);
}

// A rank of two: half the heads, columns and vocabulary; the key-value head is on both.
TEST(ClusterModel, SharesOutLayersOverTensorRanks) {
  StepShape step = small_step();
  step.grid.tensor = 2;
  const StepPrediction half = predict_step(step, round_cluster());
  const double linears = 2 * 16 * (32 + 64) * 64 + 131072 / 2 + 524288 / 2 + 262144 / 2;
  EXPECT_NEAR(half.compute.gemm, 3 * 3 * linears / 1e9, 1e-12);
  EXPECT_NEAR(half.compute.attention, 3 * 3.5 * kAttention / 2 / 1e9, 1e-12);
  EXPECT_NEAR(half.compute.head, 3 * kHead / 2 / 1e9, 1e-12);
}

// 2 x 16 x 64 x 128 FLOPs at 1 GFLOP/s, or (16 x 128 + 128 x 64 + 16 x 64) x 4 bytes at 1 MB/s; and
// half a second for the call.
TEST(ClusterModel, TakesTheLongerOfComputeAndMemoryForAProduct) {
  ClusterProfile cluster = round_cluster();
  cluster.call_seconds = 0.5;
  const auto seconds = [&] {
    return gemm_seconds(cluster, cluster.gemm_forward, 16, 64, 128, DType::kF32);
  };
  EXPECT_DOUBLE_EQ(seconds(), 262144 / 1e9 + 0.5);
  cluster.memory_bandwidth = 1e6;
  EXPECT_DOUBLE_EQ(seconds(), (2048 + 8192 + 1024) * 4 / 1e6 + 0.5);
  EXPECT_EQ(gemm_seconds(cluster, cluster.gemm_forward, 0, 64, 128, DType::kF32), 0);
}

// A rate that a file could not give: whoever made it, the device's peak is what counts.
// Mutation seen red: rates taken as they are.
TEST(ClusterModel, HoldsEveryRateToThePeak) {
  ClusterProfile cluster = round_cluster();
  cluster.gemm_forward = cluster.gemm_input_gradient = cluster.gemm_weight_gradient =
      cluster.attention_forward = cluster.attention_backward = {{{1, 1e12}}};
  const StepPrediction step = predict_step(small_step(), cluster);
  const StepPrediction at_peak = predict_step(small_step(), round_cluster());
  EXPECT_EQ(step.compute.gemm, at_peak.compute.gemm);
  EXPECT_EQ(step.compute.attention, at_peak.compute.attention);
  EXPECT_EQ(step.step_seconds, at_peak.step_seconds);
}

// Two replicas on one node: a scatter of gradients of 0.08 bytes takes half of that at 50 bytes/s
// and 0.25 s of path (here none), a gather of 0.02 bytes their whole at 100.
class ClusterOverlap : public testing::Test {
 protected:
  ClusterOverlap() {
    cluster_.within_node.latency = 0;
    cluster_.within_node.reduce_bandwidth = 1e3;
    cluster_.within_node.bandwidth = 1e3;
    step_.grid.data = 2;
    step_.executed_flops *= 2;
  }
  double waited(double share, std::int64_t bytes) {
    cluster_.gradient_overlap = share;
    step_.update_traffic = {};
    step_.update_traffic.count(GridAxis::kReplicas, Collective::kReduceScatter, 1, bytes);
    const StepPrediction step = predict_step(step_, cluster_);
    EXPECT_EQ(step.axes.size(), 1u);
    EXPECT_EQ(step.axes[0].axis, GridAxis::kReplicas);
    EXPECT_EQ(step.axes[0].bytes, bytes);
    EXPECT_NEAR(step.axes[0].seconds, static_cast<double>(bytes) / 2 / 1e3, 1e-15);
    EXPECT_EQ(step.axes[0].waited_seconds, step.reduce_seconds);
    return step.reduce_seconds;
  }
  ClusterProfile cluster_ = round_cluster();
  StepShape step_ = small_step();
};

// Backward takes (6 x 1179648 + 7.5 x 34816 + 2 x 524288) / 1e9 = 0.008387584 s.
// Mutation seen red: the share taken of what is longer.
TEST_F(ClusterOverlap, HidesAShareOfWhatRunsUnderBackward) {
  EXPECT_NEAR(waited(0, 8), 0.004, 1e-12);
  EXPECT_NEAR(waited(0.75, 8), 0.001, 1e-12);
  EXPECT_NEAR(waited(1, 8), 0, 1e-12);
  // Of 0.02 s no more than backward's can be hidden.
  EXPECT_NEAR(waited(1, 40), 0.02 - 0.008387584, 1e-9);
  EXPECT_NEAR(waited(0.5, 40), 0.02 - 0.008387584 / 2, 1e-9);
  step_.overlap = false;
  EXPECT_NEAR(waited(1, 8), 0.004, 1e-12);
}

// Shapes, grids and rates at random, every rate as high as it may be, ranks that are waited for
// with less to do than the others even.
TEST(ClusterModel, NeverPredictsAnMfuAboveOne) {
  const RandomStream random(7, "cluster");
  std::uint64_t draw = 0;
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(
                       random.below(static_cast<std::uint64_t>(most - least + 1), draw++));
  };
  for (int turn = 0; turn < 2000; ++turn) {
    StepShape step;
    step.model.num_key_value_heads = pick(1, 8);
    step.model.num_attention_heads = step.model.num_key_value_heads * pick(1, 4);
    step.model.head_dim = pick(1, 130);
    step.model.hidden_size = pick(1, 3000);
    step.grid = {.tensor = static_cast<int>(pick(1, 2)),
                 .context = static_cast<int>(pick(1, 3)),
                 .data = static_cast<int>(pick(1, 5))};
    step.model.num_attention_heads *= step.grid.tensor;
    step.model.intermediate_size = step.grid.tensor * pick(1, 3000);
    step.model.num_hidden_layers = pick(1, 40);
    step.model.vocab_size = pick(1, 100000);
    step.recompute = static_cast<Recompute>(pick(0, 2));
    const std::int64_t rows = pick(1, 20000), edge_rows = pick(0, rows);
    step.microbatches = {{.count = static_cast<double>(pick(1, 9)),
                          .rows = rows,
                          .edge_rows = edge_rows,
                          .visible_pairs = rows * (rows + 1) / 2,
                          .ranges = pick(1, 50),
                          .range_rows = pick(1, rows)}};
    const double balanced = step.microbatches[0].count * step.grid.context * step.grid.data *
                            executed_flops(step.model, {rows, rows * (rows + 1) / 2, edge_rows});
    step.executed_flops = balanced * static_cast<double>(pick(1, 3));
    ClusterProfile cluster = round_cluster();
    cluster.extra_keys = static_cast<double>(pick(0, 50));
    cluster.gemm_forward = {{{16, 1e8}, {1024, 1e9}}};
    const StepPrediction prediction = predict_step(step, cluster);
    EXPECT_GT(prediction.mfu, 0);
    EXPECT_LE(prediction.mfu, 1 + 1e-12);
    EXPECT_GE(prediction.step_seconds * cluster.peak_flops * step.grid.ranks(),
              step.executed_flops * (1 - 1e-12));
  }
}

}  // namespace
}  // namespace coppice::test
