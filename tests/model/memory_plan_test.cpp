// The plan against what the account of memory says was really held.
#include "model/memory_plan.hpp"

#include <gtest/gtest.h>

#include "model/tiny_models.hpp"
#include "optim/adamw.hpp"
#include "optim/grad_norm.hpp"

namespace coppice {
namespace {

using namespace test;

MemoryPlan plan_of(const ModelConfig& config, DType dtype, PassKind pass, Recompute recompute,
                   const std::vector<const PackedBatch*>& batches, int threads = 1) {
  MemoryPlanner planner(config, dtype, pass, recompute, threads);
  for (const auto* batch : batches) planner.add(*batch);
  return planner.plan();
}

std::map<std::string, std::int64_t> by_name(const MemoryPlan& plan) {
  std::map<std::string, std::int64_t> lines;
  for (const auto& line : plan.lines) lines[line.name] = line.bytes;
  return lines;
}

std::map<std::string, std::int64_t> held(const Memory& memory) {
  std::map<std::string, std::int64_t> lines;
  for (const auto& [name, bytes] : memory.by_name()) {
    if (bytes > 0) lines[name] = bytes;
  }
  return lines;
}

class MemoryPlanOf : public testing::TestWithParam<TinyCase> {};
INSTANTIATE_TEST_SUITE_P(Cpu, MemoryPlanOf, testing::ValuesIn(all_tiny_cases()),
                         [](const auto& p) { return p.param.name(); });

// Mutations seen red: one stream too few; the head's input not counted; no scratch of backward.
TEST_P(MemoryPlanOf, TrainingIsExactToTheByteByNameAndAtThePeak) {
  for (const auto dtype : {DType::kF32, DType::kF64}) {
    for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
      TinyModel model(config_of(GetParam()), dtype);
      const auto parameters = model->parameters();
      AdamW optimizer({}, parameters, model.memory());
      const PackedBatch batch = grouped(hard_groups(61));
      for (int step = 0; step < 2; ++step) run_pass(model, batch, {.recompute = recompute});
      const MemoryPlan plan =
          plan_of(model->config(), dtype, PassKind::kTrain, recompute, {&batch});
      EXPECT_EQ(held(model.memory()), by_name(plan));
      EXPECT_EQ(model.memory().peak_bytes(), plan.total());
    }
  }
}

TEST_P(MemoryPlanOf, ScoringIsExactToTheByteByNameAndAtThePeak) {
  for (const auto dtype : {DType::kF32, DType::kF64}) {
    TinyModel model(config_of(GetParam()), dtype, 1, WithGradients::kNo);
    const PackedBatch batch = repeated(hard_groups(61));
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    model->score(model.ctx(), batch, 1.0, logprobs, entropies);
    const MemoryPlan plan =
        plan_of(model->config(), dtype, PassKind::kScore, Recompute::kNone, {&batch});
    EXPECT_EQ(held(model.memory()), by_name(plan));
    EXPECT_EQ(model.memory().peak_bytes(), plan.total());
  }
}

/// Models that a CUDA device has kernels for, where the build has one.
class MemoryPlanInBf16 : public testing::TestWithParam<Backend> {
 protected:
  static std::vector<TinyCase> models() {
    return {{"Llama", false, 2, 1, 64, 151, 64}, {"Qwen3", true, 1, 1, 96, 151, 72}};
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoryPlanInBf16);
INSTANTIATE_TEST_SUITE_P(Backends, MemoryPlanInBf16, testing::ValuesIn(cuda_backends()),
                         [](const auto& p) { return p.param.name(); });

TEST_P(MemoryPlanInBf16, TrainingIsExactToTheByteByNameAndScratchSuffices) {
  for (const TinyCase& tiny : models()) {
    for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
      TinyModel model(config_of(tiny), GetParam());
      const auto parameters = model->parameters();
      AdamW optimizer({}, parameters, model.memory());
      const PackedBatch batch = grouped(hard_groups(61));
      run_pass(model, batch, {.recompute = recompute});
      EXPECT_LT(global_grad_norm(model.ctx(), parameters), 1e6);
      optimizer.step(model.ctx(), 1e-3, 1.0);
      const MemoryPlan plan =
          plan_of(model->config(), GetParam().dtype, PassKind::kTrain, recompute, {&batch});
      EXPECT_EQ(held(model.memory()), by_name(plan));
      EXPECT_EQ(model.memory().peak_bytes(), plan.total());
      EXPECT_EQ(model->activations().arena.high_water_bytes(), by_name(plan).at("activations"));
      // On top of everything there is room for a product's workspace, whichever op comes at the
      // top.
      EXPECT_LE(model.ctx().scratch.high_water_bytes(), by_name(plan).at("scratch"));
    }
  }
}

TEST_P(MemoryPlanInBf16, ScoringIsExactToTheByteByNameAndScratchSuffices) {
  for (const TinyCase& tiny : models()) {
    TinyModel model(config_of(tiny), GetParam(), 1, WithGradients::kNo);
    const PackedBatch batch = repeated(hard_groups(61));
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    model->score(model.ctx(), batch, 1.0, logprobs, entropies);
    const MemoryPlan plan =
        plan_of(model->config(), GetParam().dtype, PassKind::kScore, Recompute::kNone, {&batch});
    EXPECT_EQ(held(model.memory()), by_name(plan));
    EXPECT_EQ(model.memory().peak_bytes(), plan.total());
    EXPECT_LE(model.ctx().scratch.high_water_bytes(), by_name(plan).at("scratch"));
  }
}

TEST(MemoryPlan, KnowsThatThreadsHaveScratchOfTheirOwn) {
  const auto groups = hard_groups(61);
  const PackedBatch batch = grouped(groups);
  for (const int threads : {1, 2, 3}) {
    TinyModel model(config_of(all_tiny_cases()[0]), DType::kF32, threads);
    run_pass(model, batch);
    EXPECT_EQ(held(model.memory()).at("scratch"),
              by_name(plan_of(model->config(), DType::kF32, PassKind::kTrain, Recompute::kNone,
                              {&batch}, threads))
                  .at("scratch"));
  }
}

TEST(MemoryPlan, LeasesNothingBeyondWhatIsReserved) {
  TinyModel model(config_of(all_tiny_cases()[0]), DType::kF32);
  const PackedBatch batch = grouped(hard_groups(61));
  run_pass(model, batch);
  const auto plan =
      by_name(plan_of(model->config(), DType::kF32, PassKind::kTrain, Recompute::kNone, {&batch}));
  // All of the planned bytes are also used: the plan is no upper bound, it is the figure.
  EXPECT_EQ(model->activations().arena.high_water_bytes(), plan.at("activations"));
  EXPECT_EQ(model.ctx().scratch.high_water_bytes(), plan.at("scratch"));
}

TEST(MemoryPlan, OfTheLargestMicrobatchHoldsForSmallerOnesBeforeAndAfterIt) {
  TinyModel model(config_of(all_tiny_cases()[0]), DType::kF32);
  const auto groups = hard_groups(61);
  const PackedBatch large = grouped(groups), small = grouped({groups[1]});
  for (const auto* batch : {&small, &large, &small}) run_pass(model, *batch);
  const auto plan = plan_of(model->config(), DType::kF32, PassKind::kTrain, Recompute::kNone,
                            {&small, &large, &small});
  EXPECT_EQ(model.memory().peak_bytes(),
            plan.total() - by_name(plan).at("moments"));  // no optimizer here
}

// Check 23. With a vocabulary of 150,000 in f32 a chunk of 128 MiB holds 223 rows. Neither more
// edge rows nor a longer prefix without edges make the head larger.
TEST(MemoryPlan, OfTheHeadGrowsNeitherWithThePrefixNorWithTheEdgeRows) {
  ModelConfig config = config_of(all_tiny_cases()[0]);
  config.vocab_size = 150000;
  config.max_position_embeddings = 1 << 20;
  const auto scratch = [&](std::size_t prefix, std::size_t response) {
    const PackedBatch batch = grouped({{Tokens(prefix, 1), {{Tokens(response, 2)}}}});
    return by_name(plan_of(config, DType::kF32, PassKind::kTrain, Recompute::kNone, {&batch}))
        .at("scratch");
  };
  const std::int64_t chunk = std::int64_t{128} << 20, small = std::int64_t{4} << 20;
  EXPECT_GT(scratch(10, 2000), chunk / 2);
  for (const std::size_t response : {223u, 224u, 500u, 2000u}) {
    EXPECT_LT(scratch(10, response), chunk + small);
  }
  EXPECT_LT(std::abs(scratch(2000, 500) - scratch(10, 500)), small);
}

TEST(MemoryPlan, OfRecomputationIsSmaller) {
  const ModelConfig config = config_of(all_tiny_cases()[0]);
  const PackedBatch batch = grouped(hard_groups(61));
  const auto activations = [&](Recompute recompute) {
    return by_name(plan_of(config, DType::kF32, PassKind::kTrain, recompute, {&batch}))
        .at("activations");
  };
  EXPECT_LT(activations(Recompute::kSelective), activations(Recompute::kNone));
  EXPECT_LT(activations(Recompute::kBlock), activations(Recompute::kSelective));
}

}  // namespace
}  // namespace coppice
