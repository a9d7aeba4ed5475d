// The shapes that stand for a step against the plan of all its ranks, the search, and the published
// bounds on the speed-up from shapes alone.
#include "launch/cluster_shape.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "launch/cluster_examples.hpp"
#include "launch/cluster_search.hpp"
#include "launch/run_plan.hpp"
#include "rl/example_groups.hpp"

namespace coppice::test {
namespace {

ModelConfig shape(const std::string& name) {
  const std::string path = std::string(COPPICE_SOURCE_DIR) + "/tests/launch/shapes/" + name;
  std::ifstream file(path);
  return ModelConfig::parse(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

// Two layers of it.
ModelConfig small_llama() {
  ModelConfig model = shape("llama3_8b.json");
  model.num_hidden_layers = 2;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 16;
  model.vocab_size = 104;
  return model;
}

std::vector<Group> equal_groups(std::int64_t prefix, std::int64_t response, std::int64_t group_size,
                                int count) {
  std::vector<Group> groups;
  for (int g = 0; g < count; ++g) {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(response), 3);
    groups.push_back(
        group_of(std::vector<std::int32_t>(static_cast<std::size_t>(prefix), 2),
                 std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(group_size), ids),
                 fmt::format("g{}", g)));
    for (std::size_t i = 0; i < groups.back().responses.size(); ++i)
      groups.back().responses[i].reward = static_cast<double>(i % 2);
  }
  return groups;
}

RunConfig config_of(Sharing sharing, std::int64_t groups, std::int64_t most_rows) {
  RunConfig config;
  config.trainer.groups_per_step = groups;
  config.trainer.batching = {.sharing = sharing, .max_rows_per_microbatch = most_rows};
  return config;
}

RunPlan plan_of(const RunConfig& config, const ModelConfig& model, std::vector<Group> groups) {
  RolloutsSource source(std::move(groups), 1, false, 1);
  return plan_run(config, model, source);
}

StepBatch batch_of(const RunConfig& config, std::vector<Group> groups) {
  return {std::move(groups), config.trainer.loss, config.trainer.advantage};
}

// On grids whose ranks all send alike, each sends its share of what the plan counts for all.
// Mutations seen red: traffic of the update left out; one micro-batch of each rank in place of all.
TEST(ClusterStep, SendsWhatThePlanOfAllRanksCountsByAxis) {
  const ModelConfig model = small_llama();
  for (const GridSizes& grid :
       {GridSizes{.tensor = 2}, {.tensor = 4}, {.data = 2}, {.tensor = 2, .data = 2}}) {
    RunConfig config = config_of(Sharing::kGrouped, 4, 60);
    config.grid = grid;
    const auto groups = equal_groups(10, 6, 3, 4);
    const RunPlan plan = plan_of(config, model, groups);
    ClusterProfile cluster = round_cluster();
    const StepPrediction step = predict_step(config, model, batch_of(config, groups), cluster);
    EXPECT_FALSE(step.axes.empty());
    std::int64_t bytes = 0;
    for (const AxisPrediction& axis : step.axes) {
      EXPECT_EQ(axis.bytes * grid.ranks(), plan.steps[0].traffic.bytes(axis.axis))
          << name_of(axis.axis);
      bytes += axis.bytes;
    }
    EXPECT_EQ(bytes * grid.ranks(), plan.steps[0].traffic.bytes());
  }
}

// Context ranks too, where the one with most to do is followed: as many rows, pairs and shared rows
// as the plan says of it.
TEST(ClusterStep, FollowsTheRankThatCostsMost) {
  const ModelConfig model = small_llama();
  RunConfig config = config_of(Sharing::kGrouped, 3, 1000);
  config.grid = {.context = 2, .data = 2};
  std::vector<Group> groups = equal_groups(40, 12, 4, 2);
  groups.push_back(equal_groups(9, 3, 2, 1)[0]);  // the lighter rank's second group
  const RunPlan plan = plan_of(config, model, groups);
  const StepShape step = ClusterStep(config, model, batch_of(config, groups)).shape({});
  std::int64_t rows = 0, pairs = 0, most = 0;
  for (const MicrobatchShape& microbatch : step.microbatches) {
    rows += microbatch.rows;
    pairs += microbatch.visible_pairs;
  }
  for (const RankWork& rank : plan.steps[0].ranks) most = std::max(most, rank.work.visible_pairs);
  EXPECT_EQ(pairs, most);
  EXPECT_EQ(step.executed_flops, plan.steps[0].executed_flops);
  EXPECT_GE(rows * 4, plan.steps[0].work.rows);
}

TEST(ClusterStep, NeedsTheMemoryThatThePlanOfAllRanksTells) {
  const ModelConfig model = small_llama();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
    RunConfig config = config_of(Sharing::kGrouped, 3, 60);
    config.grid = {.tensor = 2, .data = 2};
    config.trainer.recompute = recompute;
    const auto groups = equal_groups(10, 6, 3, 4);
    const auto planned = plan_of(config, model, groups).memory.total();
    const auto memory =
        ClusterStep(config, model, batch_of(config, groups)).memory(recompute).total();
    EXPECT_EQ(memory, planned);
  }
}

// 100 micro-batches of one kind: 16 are looked at, and stand for 100.
TEST(ClusterStep, LooksAtSomeOfManyMicrobatches) {
  const ModelConfig model = small_llama();
  const RunConfig config = config_of(Sharing::kGrouped, 100, 28);
  const auto groups = equal_groups(10, 6, 3, 100);
  const StepShape step = ClusterStep(config, model, batch_of(config, groups)).shape({});
  EXPECT_EQ(step.microbatches.size(), ClusterStep::kMostPacked);
  double count = 0;
  for (const MicrobatchShape& microbatch : step.microbatches) count += microbatch.count;
  EXPECT_DOUBLE_EQ(count, 100);
}

TEST(ClusterSearch, PutsWhatFitsFirstAndTheFastestOfIt) {
  const ModelConfig model = small_llama();
  RunConfig config = config_of(Sharing::kGrouped, 8, 200);
  const auto groups = equal_groups(100, 20, 4, 8);
  ClusterProfile cluster = round_cluster();
  cluster.within_node.bandwidth = cluster.within_node.reduce_bandwidth = 1e6;
  cluster.between_nodes = cluster.within_node;
  const StepBatch batch = batch_of(config, groups);
  const auto all = search_grids(config, model, batch, cluster, 8);
  // tensor 1, 2 and 4 (more would cut heads), times the products of what is left: 4 + 3 + 2.
  EXPECT_EQ(all.size(), 9u);
  const auto memory = all[4].memory.total();
  cluster.memory_bytes = static_cast<double>(memory);
  const auto limited = search_grids(config, model, batch, cluster, 8);
  EXPECT_EQ(limited.size(), 9u);
  EXPECT_TRUE(limited.front().fits);
  EXPECT_FALSE(limited.back().fits);
  for (std::size_t i = 1; i < limited.size(); ++i) {
    EXPECT_EQ(limited[i].fits, limited[i].memory.total() <= memory);
    if (limited[i].fits) {
      EXPECT_TRUE(limited[i - 1].fits);
      EXPECT_LE(limited[i - 1].prediction.step_seconds, limited[i].prediction.step_seconds);
    }
  }
}

// The published bounds on what sharing can give: FLOPs with every prompt repeated over FLOPs of the
// packing, the paper's equation 17, from a config.json and lengths alone. Mutation seen red: pairs
// counted whole, as if the mask were not causal (5.56).
TEST(PublishedBounds, FollowFromTheShapesAlone) {
  const auto bound = [](const char* model, std::int64_t prefix, std::int64_t response,
                        std::int64_t group_size) {
    const RunConfig config = config_of(Sharing::kGrouped, 1, prefix + group_size * response);
    return plan_of(config, shape(model), equal_groups(prefix, response, group_size, 1))
        .predicted_speedup;
  };
  EXPECT_NEAR(bound("llama3_8b.json", 10240, 2048, 8), 3.33, 0.005);
  EXPECT_NEAR(bound("llama3_8b.json", 10240, 2048, 32), 4.43, 0.005);
  EXPECT_NEAR(bound("llama3_8b.json", 10240, 2048, 128), 4.83, 0.005);
  EXPECT_NEAR(bound("qwen3_8b.json", 8192, 2048, 32), 3.79, 0.005);
}

// What is predicted for a node of H100 stays below the bound, and MFU below 1.
TEST(PublishedBounds, AreAboveWhatIsPredictedForTimes) {
  const ClusterProfile cluster =
      load_cluster(std::string(COPPICE_SOURCE_DIR) + "/configs/clusters/h100_8.textproto");
  const ModelConfig model = shape("llama3_8b.json");
  const auto groups = equal_groups(10240, 2048, 128, 1);
  const auto predict = [&](Sharing sharing) {
    RunConfig config = config_of(sharing, 1, 10240 + 128 * 2048);
    move_to(cluster, config);
    config.grid = {.tensor = 2, .context = 4};
    config.sequence_parallel = SequenceParallel::kYes;
    config.trainer.recompute = Recompute::kSelective;
    return predict_step(config, model, batch_of(config, groups), cluster);
  };
  const StepPrediction grouped = predict(Sharing::kGrouped), repeated = predict(Sharing::kRepeated);
  EXPECT_LT(repeated.step_seconds / grouped.step_seconds, 4.83);
  EXPECT_GT(repeated.step_seconds / grouped.step_seconds, 3.5);
  EXPECT_LT(grouped.mfu, 1);
  EXPECT_GT(grouped.mfu, 0.2);
}

}  // namespace
}  // namespace coppice::test
