// Training on every grid against training on one rank: the same losses, norms, counts and weights;
// the same bits on all ranks that hold the same; the same decisions.
#include "rl/trainer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/memory_plan.hpp"
#include "ranks/grid_run.hpp"
#include "rl/scorer.hpp"

namespace coppice {
namespace {

using test::distance;
using test::grid_cases;
using test::GridCase;
using test::GridRun;
using test::make_grid;
using test::RunOptions;
using test::SharedDirectory;
using test::tiny_rollouts;
using test::tiny_trainer_config;
using test::TinyCase;
using test::TrainingRun;

// Models whose heads share key-value heads over tensor ranks, with q/k norms, biases, tied weights.
std::vector<TinyCase> tiny_cases() {
  return {{"Llama", false, 4, 2, 6}, {"Qwen3", true, 3, 1, 4}, {"Qwen2", true, 4, 1, 6}};
}

template <class Body>
void on_every_grid(const TinyCase& tiny, Body&& body) {
  const ModelConfig model = test::config_of(tiny);
  for (const GridCase& which : grid_cases(model)) {
    const auto grid = make_grid(which, model);
    const SharedDirectory directory(grid->world());
    SCOPED_TRACE(fmt::format("{} {} rank {}", tiny.name(), name_of(which), grid->world().rank()));
    body(*grid, which, directory.path());
  }
}

// Four groups a step under a small budget: several micro-batches, groups cut in parts, and data
// ranks without any group where there are more than four.
TrainerConfig three_steps() {
  TrainerConfig config = tiny_trainer_config();
  config.groups_per_step = 4;
  config.loss.updates_per_batch = 2;
  config.loss.entropy_coef = 0.01;
  config.loss.temperature = 0.8;
  config.batching = {Sharing::kAuto, 38};
  config.limits.max_steps = 3;
  return config;
}

// Bounds of math.md section 7 in f64: 1e-12 for the first step's loss and norm, 1e-8 for the
// distance over the distance moved.
// Mutations seen red: every data rank running the first one's groups; updated values not gathered;
// a norm's gradient not summed over tensor ranks under sequence parallelism; a shared key-value
// head's gradient left as it is, summed over all tensor ranks, or counted twice in the norm.
TEST(TrainerOnEveryGrid, TrainsAsOneRankDoes) {
  for (const TinyCase& tiny : tiny_cases()) {
    const RunOptions options{.tiny = tiny, .epochs = 2};
    TrainingRun one(tiny_rollouts(), three_steps(), options);
    const auto start = one.weights();
    std::vector<StepMetrics> expected;
    for (int step = 0; step < 3; ++step) expected.push_back(*one.trainer().step());
    const double moved = distance(one.weights(), start);
    ASSERT_GT(moved, 0.01);
    on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
      GridRun run(grid, which, tiny_rollouts(), three_steps(), options, run_dir);
      ASSERT_EQ(run.weights(), start);
      for (const StepMetrics& want : expected) {
        const StepMetrics got = *run.trainer().step();
        const double bound = want.step == 1 ? 1e-12 : 1e-8;
        EXPECT_NEAR(*got.loss, *want.loss, bound * std::abs(*want.loss)) << want.step;
        EXPECT_NEAR(*got.grad_norm, *want.grad_norm, bound * *want.grad_norm) << want.step;
        EXPECT_NEAR(*got.entropy, *want.entropy, bound * *want.entropy) << want.step;
        EXPECT_EQ(got.ratio_mean == 1.0, want.ratio_mean == 1.0) << want.step;
        EXPECT_EQ(got.rows, want.rows);
        EXPECT_EQ(got.visible_pairs, want.visible_pairs);
        EXPECT_EQ(got.edge_rows, want.edge_rows);
        EXPECT_EQ(got.executed_flops, want.executed_flops);
        EXPECT_EQ(got.loss_tokens, want.loss_tokens);
        EXPECT_EQ(got.fallbacks, want.fallbacks);
        EXPECT_EQ(got.sharing, want.sharing);
        EXPECT_LE(got.microbatches, want.microbatches);
        EXPECT_EQ(got.communication_bytes.has_value(), grid.world().size() > 1);
        EXPECT_EQ(got.seconds.reduce.has_value(), grid.world().size() > 1);
      }
      EXPECT_LE(distance(run.weights(), one.weights()), 1e-8 * moved);
    });
  }
}

// In f32, where a sum that took another order, or a gradient before it was whole, would show.
// Mutations seen red: sums begun in the first micro-batch; values gathered before they are updated.
TEST(TrainerOnEveryGrid, TrainsToTheSameBitsWithAndWithoutOverlap) {
  for (const TinyCase& tiny : tiny_cases()) {
    const RunOptions options{.dtype = DType::kF32, .tiny = tiny, .epochs = 2};
    on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
      std::vector<std::vector<double>> results;
      std::vector<std::vector<StepMetrics>> steps;
      for (const bool overlap : {false, true}) {
        grid.overlap(overlap);
        GridRun run(grid, which, tiny_rollouts(), three_steps(), options, run_dir);
        auto& told = steps.emplace_back();
        for (int step = 0; step < 3; ++step) told.push_back(*run.trainer().step());
        results.push_back(run.weights());
        results.push_back(run.moments());
      }
      EXPECT_EQ(results[0], results[2]);
      EXPECT_EQ(results[1], results[3]);
      for (std::size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(steps[0][step].loss, steps[1][step].loss);
        EXPECT_EQ(steps[0][step].grad_norm, steps[1][step].grad_norm);
        EXPECT_EQ(steps[0][step].communication_bytes, steps[1][step].communication_bytes);
      }
    });
  }
}

// Every replica, every tensor rank for what it holds whole, every sharer for its heads.
void expect_identical_bits(GridRun& run, ProcessGrid& grid, Communicator& comm,
                           const std::function<bool(const ParameterPart&)>& is_held_by_all) {
  if (comm.size() == 1) return;
  for (Parameter* parameter : run.model().parameters())
    for (const ParameterPart& part : parameter->parts) {
      if (!is_held_by_all(part)) continue;
      const TensorView mine = rows_of(part, parameter->value);
      test::TestContext test(1);
      Tensor first = test.from(mine.dtype(), mine.shape(), test::values_of(mine));
      comm.broadcast(run.ctx().stream, first, 0);
      ASSERT_TRUE(test::bit_equal(first, mine)) << part.name << " rank " << grid.world().rank();
    }
}

// Mutations seen red: updated values not gathered; gradients of norms, or of shared key-value
// heads, not summed over the tensor ranks.
TEST(TrainerOnEveryGrid, HoldsTheSameBitsAfterTwentySteps) {
  const TinyCase tiny{"Qwen3", false, 4, 2, 6};
  TrainerConfig config = tiny_trainer_config();
  config.batching = {Sharing::kAuto, 38};
  config.limits.max_steps = 20;
  config.limits.parameter_check_steps = 7;
  on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
    GridRun run(grid, which, tiny_rollouts(), config,
                {.dtype = DType::kF32, .tiny = tiny, .epochs = 10}, run_dir);
    for (int step = 0; step < 20; ++step) ASSERT_FALSE(run.trainer().step()->skipped);
    expect_identical_bits(run, grid, grid.replicas(), [](const auto&) { return true; });
    expect_identical_bits(run, grid, grid.tensor(), [](const ParameterPart& part) {
      return part.shard.local_shape == part.shard.global_shape;
    });
    expect_identical_bits(run, grid, grid.shared_key_value(), [](const ParameterPart& part) {
      return part.reduction == ReductionGroup::kSharedKeyValueHead;
    });
  });
}

std::int64_t planned_bytes(GridRun& run, ProcessGrid& grid, const GridCase& which,
                           const std::vector<Group>& groups, const TrainerConfig& config) {
  const ModelConfig& model = run.model().config();
  MemoryPlanner planner(
      model, DType::kF64, PassKind::kTrain, Recompute::kNone, 1,
      {.tensor_size = which.sizes.tensor,
       .sequence_parallel = which.sequence_parallel,
       .moment_shards = which.zero == Zero::kOptimizer ? grid.replicas().size() : 1});
  RowPlace rows = row_place(model, grid.parallel());
  const StepPlan plan = plan_step(groups, config.batching, EdgeTokens::kInLoss, packing_cost(model),
                                  which.sizes.data, rows);
  for (int dp_rank = 0; dp_rank < which.sizes.data; ++dp_rank)
    for (const Microbatch& microbatch : plan.ranks[static_cast<std::size_t>(dp_rank)].microbatches)
      for (rows.cp_rank = 0; rows.cp_rank < rows.cp_size; ++rows.cp_rank)
        if (!microbatch.empty())
          planner.add(pack(groups, microbatch, EdgeTokens::kInLoss, rows),
                      dp_rank * rows.cp_size + rows.cp_rank);
  return planner.plan().total();
}

// Check 37: what coppice plan says of memory is the fullest rank's peak, to the byte. Ranks differ:
// one has the most rows, another the most moments.
// Mutations seen red: moments of all rows on every rank; every line the largest of any rank.
TEST(TrainerOnEveryGrid, TakesTheMemoryThatIsPlanned) {
  const TinyCase tiny{"Qwen3", true, 4, 2, 6, 8009};
  TrainerConfig config = tiny_trainer_config();
  config.groups_per_step = 4;
  config.batching = {Sharing::kGrouped, 60};
  std::vector<std::vector<Group>> batches{tiny_rollouts(), tiny_rollouts()};
  batches[1].erase(batches[1].begin(), batches[1].begin() + 3);
  ASSERT_EQ(batches[1][0].responses.size(), 1u);
  for (const auto& groups : batches)
    on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
      GridRun run(grid, which, groups, config, {.tiny = tiny}, run_dir);
      const StepMetrics metrics = *run.trainer().step();
      EXPECT_EQ(metrics.peak_memory_bytes, planned_bytes(run, grid, which, groups, config));
    });
}

// One learning token on one data rank, a thousand on another, and ranks with no group.
// Mutation seen red, here and in TrainsAsOneRankDoes: a denominator of each rank's own tokens.
TEST(TrainerOnEveryGrid, ManyTokensOnOneRankAndOneOnAnotherGiveTheSameGradient) {
  const TinyCase tiny{"Llama", false, 4, 2, 6};
  const RandomStream random(3, "tokens");
  std::uint64_t draw = 0;
  const auto tokens = [&](std::int64_t count) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < count; ++i)
      ids.push_back(static_cast<std::int32_t>(random.below(61, draw++)));
    return ids;
  };
  std::vector<Group> groups{{"one", tokens(3), {}, 1}, {"thousand", tokens(5), {}, 2}};
  const auto add = [&](Group& group, std::int64_t count, double reward) {
    Response response;
    response.ids = tokens(count);
    response.loss_mask.assign(response.ids.size(), 1);
    response.reward = reward;
    response.advantages.assign(response.ids.size(), reward);
    group.responses.push_back(std::move(response));
  };
  add(groups[0], 1, 1.0);
  for (int r = 0; r < 5; ++r) add(groups[1], 200, r % 2 == 0 ? 0.7 : -0.5);
  TrainerConfig config = tiny_trainer_config();
  config.loss = default_loss(LossKind::kDapo);
  config.batching = {Sharing::kGrouped, 2000};
  const RunOptions options{.tiny = tiny};
  TrainingRun one(groups, config, options);
  const auto start = one.weights();
  const StepMetrics want = *one.trainer().step();
  ASSERT_EQ(want.loss_tokens, 1001);
  const double moved = distance(one.weights(), start);
  on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
    GridRun run(grid, which, groups, config, options, run_dir);
    const StepMetrics got = *run.trainer().step();
    EXPECT_EQ(got.microbatches, 1);
    EXPECT_NEAR(*got.loss, *want.loss, 1e-12 * std::abs(*want.loss));
    EXPECT_NEAR(*got.grad_norm, *want.grad_norm, 1e-12 * *want.grad_norm);
    EXPECT_LE(distance(run.weights(), one.weights()), 1e-8 * moved);
  });
}

// A weight that is not finite on one rank alone: all ranks skip the step, and nobody's weights,
// moments or counts move. Seen red where the decision is not heeded.
TEST(TrainerOnEveryGrid, SkipsAStepOnAllRanksOrOnNone) {
  const TinyCase tiny{"Llama", false, 4, 2, 6};
  TrainerConfig config = three_steps();
  on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
    GridRun run(grid, which, tiny_rollouts(), config, {.tiny = tiny, .epochs = 2}, run_dir);
    run.trainer().step();
    const auto weights = run.weights(), moments = run.moments();
    // On the first rank, which has rows under every grid.
    double& weight = run.model().parameters().back()->value.view().data<double>()[0];
    const double kept = weight;
    if (grid.world().rank() == 0) weight = std::numeric_limits<double>::quiet_NaN();
    const StepMetrics skipped = *run.trainer().step();
    weight = kept;
    EXPECT_TRUE(skipped.skipped);
    EXPECT_EQ(skipped.bad_steps, 1);
    EXPECT_EQ(run.weights(), weights);
    EXPECT_EQ(run.moments(), moments);
    EXPECT_EQ(run.trainer().optimizer().applied_steps(), 1);
    EXPECT_FALSE(run.trainer().step()->skipped);
  });
}

// A difference planted after the first step is found before the second, by name, on all ranks.
TEST(TrainerOnEveryGrid, EndsWhereRanksHoldDifferentWeights) {
  const TinyCase tiny{"Llama", false, 4, 2, 6};
  TrainerConfig config = three_steps();
  config.limits.parameter_check_steps = 1;
  on_every_grid(tiny, [&](ProcessGrid& grid, const GridCase& which, const auto& run_dir) {
    GridRun run(grid, which, tiny_rollouts(), config, {.tiny = tiny, .epochs = 2}, run_dir);
    run.after_step = [&](const StepMetrics&) {
      if (grid.world().rank() + 1 < grid.world().size()) return;
      for (Parameter* parameter : run.model().parameters())
        if (parameter->name.find("model.norm") == 0)
          parameter->value.view().data<double>()[0] += 1e-6;
    };
    if (grid.world().size() == 1) return;
    std::string message;
    try {
      run.trainer().run();
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_THAT(message, testing::HasSubstr("model.norm.weight has other values on ranks"));
    EXPECT_EQ(run.steps().size(), 1u);
  });
}

}  // namespace
}  // namespace coppice
