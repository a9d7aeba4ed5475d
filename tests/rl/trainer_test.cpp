// Training of tiny models through the trainer: what must be equal, what must not change, what is
// counted. Numbers of losses and packings have tests of their own.
#include "rl/trainer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rl/scorer.hpp"
#include "rl/training_run.hpp"

namespace coppice {
namespace {

using test::distance;
using test::RunOptions;
using test::tiny_rollouts;
using test::tiny_trainer_config;
using test::TrainingRun;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class TrainerInBothPrecisions : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Cpu, TrainerInBothPrecisions, testing::Values(DType::kF32, DType::kF64),
                         [](const auto& dtype) {
                           return std::string(dtype.param == DType::kF64 ? "F64" : "F32");
                         });

// 20 steps with all groups in each. The bounds are those of math.md section 7: distance over
// distance moved 1e-8 in f64, 2e-2 in f32. The mutation, advantages with an extra 1/G (groups have
// 4, 3, 2 and 1 responses, so AdamW cannot hide it), must exceed both.
TEST_P(TrainerInBothPrecisions, GroupedEqualsRepeatedOverTwentySteps) {
  const DType dtype = GetParam();
  const auto train = [&](Sharing sharing, bool extra_one_over_g) {
    auto groups = tiny_rollouts();
    TrainerConfig config = tiny_trainer_config();
    for (Group& group : groups) {
      std::vector<double> rewards;
      for (const Response& response : group.responses) rewards.push_back(*response.reward);
      const double scale = extra_one_over_g ? 1.0 / static_cast<double>(rewards.size()) : 1.0;
      for (std::size_t r = 0; r < rewards.size(); ++r)
        group.responses[r].advantages.assign(group.responses[r].ids.size(),
                                             scale * (rewards[r] - 0.5));
    }
    config.groups_per_step = 4;
    config.loss.kl_coef = 0.0;
    config.loss.entropy_coef = 0.01;
    config.batching = {sharing, sharing == Sharing::kRepeated ? 70 : 100};
    TrainingRun run(groups, config, {.dtype = dtype, .epochs = 20});
    const auto start = run.weights();
    run.trainer().run();
    EXPECT_EQ(run.trainer().optimizer().applied_steps(), 20);
    return std::pair(start, run.weights());
  };
  const auto [start, grouped] = train(Sharing::kGrouped, false);
  const auto repeated = train(Sharing::kRepeated, false).second;
  const auto mutated = train(Sharing::kGrouped, true).second;
  const double moved = distance(grouped, start);
  const double bound = dtype == DType::kF64 ? 1e-8 : 2e-2;
  RecordProperty("distance_over_moved", fmt::format("{}", distance(grouped, repeated) / moved));
  RecordProperty("mutated_over_moved", fmt::format("{}", distance(mutated, repeated) / moved));
  EXPECT_GT(moved, 0.1);
  EXPECT_LT(distance(grouped, repeated) / moved, bound);
  EXPECT_GT(distance(mutated, repeated) / moved, 2e-2);
}

TEST(Trainer, EveryCutIntoMicrobatchesGivesTheSameGradient) {
  const auto gradients = [](BatchingConfig batching, bool reversed) {
    auto groups = tiny_rollouts();
    if (reversed) {
      std::reverse(groups.begin(), groups.end());
      for (Group& group : groups) std::reverse(group.responses.begin(), group.responses.end());
    }
    TrainerConfig config = tiny_trainer_config();
    config.groups_per_step = 4;
    config.loss = default_loss(LossKind::kDapo);
    config.loss.entropy_coef = 0.1;
    config.batching = batching;
    TrainingRun run(groups, config);
    const auto metrics = run.trainer().step();
    return std::pair(run.gradients(), metrics->microbatches);
  };
  const auto [whole, one] = gradients({Sharing::kGrouped, 1000}, false);
  EXPECT_EQ(one, 1);
  for (const BatchingConfig& batching :
       {BatchingConfig{Sharing::kGrouped, 40}, BatchingConfig{Sharing::kRepeated, 1000},
        BatchingConfig{Sharing::kRepeated, 38}, BatchingConfig{Sharing::kAuto, 38}})
    for (const bool reversed : {false, true}) {
      const auto [cut, count] = gradients(batching, reversed);
      EXPECT_LT(test::relative_difference(cut, whole), 1e-12)
          << static_cast<int>(batching.sharing) << " " << batching.max_rows_per_microbatch;
      if (batching.max_rows_per_microbatch < 1000) {
        EXPECT_GT(count, 2);
      }
    }
}

TEST(Trainer, OnPolicyTheRatioIsExactlyOneAndNothingIsClipped) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    TrainingRun run(tiny_rollouts(), tiny_trainer_config(), {.dtype = dtype});
    run.trainer().run();
    ASSERT_EQ(run.steps().size(), 2u);
    for (const StepMetrics& step : run.steps()) {
      EXPECT_EQ(step.ratio_mean, 1.0);
      EXPECT_EQ(step.ratio_max, 1.0);
      EXPECT_EQ(step.clip_fraction, 0.0);
      EXPECT_FALSE(step.seconds.old_logprobs.has_value());
      EXPECT_FALSE(step.kl.has_value());
    }
  }
}

TEST(Trainer, KlAgainstTheScoresOfTheSameModelIsExactlyZero) {
  auto groups = tiny_rollouts();
  for (Group& group : groups)
    for (Response& response : group.responses) response.loss_mask.assign(response.ids.size(), 1);
  TrainerConfig config = tiny_trainer_config();
  config.groups_per_step = 4;
  config.loss.kl_coef = 0.5;
  TrainingRun scorer(groups, config);
  const auto scores = score_groups(scorer.model().ctx(), *scorer.model(), groups, config.batching,
                                   config.loss.temperature);
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      groups[g].responses[r].ref_logprobs = scores[g][r].logprobs;
      groups[g].responses[r].old_logprobs = scores[g][r].logprobs;
    }
  TrainingRun run(groups, config);
  const auto metrics = run.trainer().step();
  EXPECT_EQ(metrics->kl, 0.0);
  EXPECT_EQ(metrics->ratio_mean, 1.0);
  EXPECT_EQ(metrics->ratio_max, 1.0);
}

// Check 15: plain gradient descent along the trainer's gradient.
TEST(Trainer, OneGradientStepRaisesLogprobsWhereTheAdvantageIsPositiveAndLowersThemElsewhere) {
  for (const double advantage : {1.0, -1.0}) {
    auto groups = tiny_rollouts();
    groups.resize(1);
    for (Response& response : groups[0].responses)
      response.advantages.assign(response.ids.size(), advantage);
    TrainerConfig config = tiny_trainer_config();
    config.optimizer.schedule.learning_rate = 0.0;
    TrainingRun run(groups, config);
    const auto sum_of_logprobs = [&] {
      double sum = 0;
      for (const auto& scores :
           score_groups(run.model().ctx(), *run.model(), groups, config.batching, 1.0))
        for (const auto& response : scores)
          for (const double logprob : response.logprobs) sum += logprob;
      return sum;
    };
    const double before = sum_of_logprobs();
    run.trainer().step();
    for (Parameter* parameter : run.model()->parameters())
      for (std::int64_t i = 0; i < parameter->value.numel(); ++i)
        parameter->value.view().data<double>()[i] -=
            1e-3 * parameter->grad.view().data<double>()[i];
    EXPECT_GT((sum_of_logprobs() - before) * advantage, 1e-6);
  }
}

// Seen red without the selection by the mask in policy_loss().
TEST_P(TrainerInBothPrecisions, GarbageWhereTheMaskIsZeroChangesNoBit) {
  const auto weights = [&](std::optional<double> garbage) {
    auto groups = tiny_rollouts();
    for (Group& group : groups)
      for (Response& response : group.responses) {
        const std::size_t tokens = response.ids.size();
        for (std::size_t t = 0; t < tokens; t += 3) response.loss_mask[t] = 0;
        response.old_logprobs.assign(tokens, -3.5);
        response.ref_logprobs.assign(tokens, -3.7);
        response.advantages.assign(tokens, *response.reward - 0.4);
        for (std::size_t t = 0; t < tokens; ++t)
          if (garbage && response.loss_mask[t] == 0)
            response.old_logprobs[t] = response.ref_logprobs[t] = response.advantages[t] = *garbage;
      }
    TrainerConfig config = tiny_trainer_config();
    config.loss.kl_coef = 0.1;
    TrainingRun run(groups, config, {.dtype = GetParam()});
    run.trainer().run();
    EXPECT_EQ(run.trainer().optimizer().applied_steps(), 2);
    return run.weights();
  };
  const auto clean = weights(std::nullopt);
  for (const double garbage : {kNan, kInfinity, -kInfinity, 1e38})
    EXPECT_EQ(weights(garbage), clean);
}

TEST(Trainer, AStepWithoutLearningTokensIsSkippedAndChangesNothing) {
  auto groups = tiny_rollouts();
  for (std::size_t g = 0; g < 2; ++g)  // the first step's groups
    for (Response& response : groups[g].responses)
      response.loss_mask.assign(response.ids.size(), 0);
  TrainerConfig config = tiny_trainer_config();
  config.optimizer.schedule = {LrScheduleKind::kLinear, 1e-3, 0, 2};
  TrainingRun run(groups, config);
  const auto start = run.weights();
  const auto skipped = run.trainer().step();
  EXPECT_TRUE(skipped->skipped);
  EXPECT_EQ(skipped->step, 1);
  EXPECT_EQ(skipped->bad_steps, 1);
  EXPECT_EQ(skipped->loss_tokens, 0);
  EXPECT_EQ(skipped->rows, 0);
  EXPECT_FALSE(skipped->loss.has_value());
  EXPECT_FALSE(skipped->learning_rate.has_value());
  EXPECT_EQ(run.weights(), start);
  EXPECT_THAT(run.moments(), testing::Each(0.0));
  EXPECT_EQ(run.trainer().optimizer().applied_steps(), 0);
  const auto applied = run.trainer().step();
  EXPECT_FALSE(applied->skipped);
  EXPECT_EQ(applied->bad_steps, 1);
  EXPECT_EQ(applied->learning_rate, 1e-3 * 0.5);  // the first applied update of two
  EXPECT_NE(run.weights(), start);
}

TEST(Trainer, ALossThatIsNotFiniteIsSkippedAndTooManyInARowEndTheRunWithoutSaving) {
  TrainerConfig config = tiny_trainer_config();
  config.checkpoint.every_steps = 1;
  config.limits.max_bad_steps = 3;
  TrainingRun run(tiny_rollouts(), config, {.epochs = 4});
  run.trainer().step();
  run.trainer().save();
  run.model().set_weight("model.norm.weight", 0, kNan);
  const auto moments = run.moments();
  EXPECT_THROW(run.trainer().run(), Error);
  EXPECT_EQ(run.moments(), moments);
  EXPECT_EQ(run.trainer().optimizer().applied_steps(), 1);
  ASSERT_EQ(run.steps().size(), 3u);
  EXPECT_TRUE(run.steps()[0].skipped);
  EXPECT_EQ(run.steps()[2].bad_steps, 3);
  // Steps 2 and 3 were not yet too many in a row; what they saved is the state of step 1.
  EXPECT_TRUE(std::filesystem::exists(run.run_dir() / "checkpoints" / "step_00000003.h5"));
  EXPECT_FALSE(std::filesystem::exists(run.run_dir() / "checkpoints" / "step_00000004.h5"));
}

TEST(Trainer, DroppedGroupsRunNoRows) {
  auto groups = tiny_rollouts();
  for (Response& response : groups[0].responses) response.reward = 1.0;
  TrainerConfig config = tiny_trainer_config();
  const auto rows = [&](bool drop) {
    config.advantage.drop_zero_std_groups = drop;
    TrainingRun run(groups, config);
    const auto metrics = run.trainer().step();
    EXPECT_EQ(metrics->zero_std_groups, 1);
    EXPECT_EQ(metrics->groups, drop ? 1 : 2);
    return metrics->rows;
  };
  EXPECT_EQ(rows(false) - rows(true), 17 + 5 + 1 + 13);  // prompt and responses of group 0
}

TEST(Trainer, CountsAreThoseOfThePackingWorkedByHand) {
  // Groups 0 and 1: prompts of 17 and 1, responses of 5 0 1 13 and 4 2 7.
  const auto step = [](Sharing sharing, std::int64_t budget) {
    TrainerConfig config = tiny_trainer_config();
    config.batching = {sharing, budget};
    TrainingRun run(tiny_rollouts(), config);
    return *run.trainer().step();
  };
  const StepMetrics grouped = step(Sharing::kGrouped, 1000);
  EXPECT_EQ(grouped.rows, 17 + 19 + 1 + 13);
  EXPECT_EQ(grouped.logical_rows, 4 * 17 + 19 + 3 * 1 + 13);
  EXPECT_EQ(grouped.visible_pairs, (17 * 18 / 2 + 19 * 17 + 15 + 1 + 91) + (1 + 13 + 10 + 3 + 28));
  EXPECT_EQ(grouped.loss_tokens, 19 + 13);
  EXPECT_EQ(grouped.edge_rows, 1 + (4 + 0 + 12) + 1 + (3 + 1 + 6));
  EXPECT_EQ(grouped.groups, 2);
  EXPECT_EQ(grouped.responses, 7);
  EXPECT_EQ(grouped.microbatches, 1);
  EXPECT_EQ(grouped.sharing, "GROUPED");
  EXPECT_EQ(grouped.fallbacks, 0);
  EXPECT_DOUBLE_EQ(*grouped.response_length_mean, 32.0 / 7);
  const StepMetrics repeated = step(Sharing::kRepeated, 1000);
  EXPECT_EQ(repeated.rows, repeated.logical_rows);
  EXPECT_EQ(repeated.edge_rows, 19 + 13);
  EXPECT_EQ(repeated.sharing, "REPEATED");
  EXPECT_NEAR(*repeated.loss, *grouped.loss, 1e-12);
  EXPECT_GT(repeated.executed_flops, grouped.executed_flops);
  // AUTO: the prompt of 17 is shared; that of 1 costs less three times than its seams would.
  const StepMetrics cheaper = step(Sharing::kAuto, 1000);
  EXPECT_EQ(cheaper.rows, 17 + 19 + 3 * 1 + 13);
  EXPECT_EQ(cheaper.visible_pairs, (17 * 18 / 2 + 19 * 17 + 15 + 1 + 91) + (15 + 6 + 36));
  EXPECT_EQ(cheaper.edge_rows, 1 + (4 + 0 + 12) + 13);
  EXPECT_EQ(cheaper.logical_rows, grouped.logical_rows);
  EXPECT_EQ(cheaper.microbatches, 1);
  EXPECT_EQ(cheaper.sharing, "MIXED");
  EXPECT_EQ(cheaper.fallbacks, 0);
  EXPECT_NEAR(*cheaper.loss, *grouped.loss, 1e-12);
  // 35 rows hold prompt 17 with responses 5 0 1 (23 rows) and then 13 (30 rows).
  EXPECT_EQ(step(Sharing::kAuto, 35).fallbacks, 1);
}

// In several micro-batches and two threads: the pass before the first update is the same code on
// the same packing, so that the first ratio is exactly 1.
TEST_P(TrainerInBothPrecisions, SeveralUpdatesCompareWithTheLogprobsBeforeTheFirst) {
  TrainerConfig config = tiny_trainer_config();
  config.loss.updates_per_batch = 3;
  config.loss.temperature = 0.8;
  config.batching = {Sharing::kAuto, 38};
  TrainingRun run(tiny_rollouts(), config, {.dtype = GetParam(), .threads = 2});
  EXPECT_EQ(run.trainer().planned_steps(), 6);
  run.trainer().run();
  ASSERT_EQ(run.steps().size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    const StepMetrics& step = run.steps()[i];
    EXPECT_EQ(step.seconds.old_logprobs.has_value(), i % 3 == 0) << i;
    EXPECT_EQ(step.ratio_mean == 1.0, i % 3 == 0) << i;
    EXPECT_EQ(step.ratio_max == 1.0, i % 3 == 0) << i;
    EXPECT_EQ(step.rows, run.steps()[i / 3 * 3].rows);
  }
}

}  // namespace
}  // namespace coppice
