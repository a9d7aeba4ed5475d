// A whole GRPO training step in bf16 on a CUDA device, real or emulated, through the trainer: plan,
// forward, loss, backward, clipping, AdamW. The answer is a plain model in double; the bound is
// what the same loops lose when memory holds bf16. Prompts are shared and repeated.
#include <gtest/gtest.h>

#include "rl/naive_step.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using namespace test;

std::vector<TinyCase> cases() {
  return {{"Llama", false, 2, 1, 64, kStepVocabulary, 64},
          {"Qwen2", true, 1, 1, 64, kStepVocabulary, 64},
          {"Qwen3", false, 3, 1, 64, kStepVocabulary, 64}};
}

struct Trained {
  NaiveStep step;
  Gradients before, after;  // weights
};

Trained train(const TinyCase& tiny, const std::vector<Group>& groups, Sharing sharing) {
  TrainingRun run(groups, step_config(sharing), {DType::kBF16, kCudaDevice, tiny});
  Trained result;
  result.before = run.model().weights();
  const auto metrics = run.trainer().step();
  result.step = {metrics.value().loss.value(), run.model().gradients()};
  result.after = run.model().weights();
  for (const Parameter* parameter : run.model()->parameters()) {
    EXPECT_EQ(values_of(parameter->value), rounded(values_of(parameter->master), DType::kBF16))
        << parameter->name;
  }
  return result;
}

class TrainerCuda : public testing::TestWithParam<Sharing> {};
INSTANTIATE_TEST_SUITE_P(Packing, TrainerCuda,
                         testing::Values(Sharing::kGrouped, Sharing::kRepeated), [](const auto& p) {
                           return p.param == Sharing::kGrouped ? "Grouped" : "Repeated";
                         });

// Mutations seen red: no residual gradient under the attention norm, no gradient of the embedding,
// gradients of q and k not turned back.
TEST_P(TrainerCuda, ErrsInAStepAtMostTwiceAsMuchAsThePlainModelInBf16) {
  StepErrors errors;
  for (const TinyCase& tiny : cases()) {
    for (int draw = 0; draw < 4; ++draw) {
      const Trained trained = train(tiny, recorded_groups(tiny, draw), GetParam());
      EXPECT_NE(trained.after, trained.before);
      errors.add(tiny, draw, GetParam() == Sharing::kGrouped, trained.step);
    }
  }
  errors.expect_right_losses();
}

TEST_P(TrainerCuda, GivesTheSameBitsUnderEverySchedule) {
  const TinyCase tiny = cases()[0];
  const auto groups = recorded_groups(tiny, 0);
  const Trained first = train(tiny, groups, GetParam());
  for (const int schedule : {1, 2}) {
    set_device_schedule(schedule);
    const Trained other = train(tiny, groups, GetParam());
    EXPECT_EQ(other.step.loss, first.step.loss);
    EXPECT_EQ(other.step.gradients, first.step.gradients);
    EXPECT_EQ(other.after, first.after);
  }
  set_device_schedule(0);
}

}  // namespace
}  // namespace coppice
