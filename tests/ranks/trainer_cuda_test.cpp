// A whole GRPO training step in bf16 of two ranks that share one CUDA device, real or emulated,
// along every axis: held against a plain model in double as one rank is (rl/trainer_cuda_test.cpp),
// with the same bits under every schedule and on every rank that holds the same.
#include <gtest/gtest.h>

#include "model/communication_plan.hpp"
#include "ranks/grid_run.hpp"
#include "rl/naive_step.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using namespace test;

std::vector<TinyCase> cases() {
  return {{"Llama", false, 2, 1, 64, kStepVocabulary, 64},  // both tensor ranks hold its one k head
          {"Qwen2", true, 2, 2, 64, kStepVocabulary, 64},
          {"Qwen3", false, 2, 1, 64, kStepVocabulary, 64}};
}

struct Trained {
  NaiveStep step;
  Gradients before, after;  // weights
};

// Every rank's values are the roundings of the masters of the ranks that speak for them: so all
// that hold the same have the same bits, and what checkpoints hold is what the ranks compute with.
void expect_values_of(GridRun& run, const Gradients& weights) {
  for (Parameter* parameter : run.model().parameters()) {
    for (const ParameterPart& part : parameter->parts) {
      const auto values = values_of(rows_of(part, parameter->value));
      const auto whole = rounded(weights.at("/parameters/" + part.name), DType::kBF16);
      std::vector<double> expected(values.size());
      GridRun::for_each_element(part.shard, [&](std::int64_t element, std::int64_t i) {
        expected[static_cast<std::size_t>(i)] = whole[static_cast<std::size_t>(element)];
      });
      EXPECT_EQ(values, expected) << part.name;
    }
  }
}

class TrainerOnTwoRanksCuda : public testing::TestWithParam<GridCase> {
 protected:
  static Trained train(const TinyCase& tiny, const std::vector<Group>& groups) {
    const auto grid = make_grid(GetParam(), config_of(tiny), kCudaDevice);
    const SharedDirectory directory(grid->world());
    GridRun run(*grid, GetParam(), groups, step_config(Sharing::kGrouped),
                {.dtype = DType::kBF16, .device = kCudaDevice, .tiny = tiny}, directory.path());
    Trained result;
    result.before = run.named_weights();
    const auto metrics = run.trainer().step();
    result.step = {metrics.value().loss.value(), run.gradients()};
    result.after = run.named_weights();
    EXPECT_NE(result.after, result.before);
    expect_values_of(run, result.after);
    return result;
  }
};

// Mutations seen red: gradients of a key-value head that both tensor ranks hold not summed; sums
// over tensor ranks left out for bf16; another rank's rows of a sum rounded under sequence
// parallelism; what the other context rank's rows send back to keys and values dropped; updated
// bf16 values not gathered; each of the two waits of a staged collective left out.
TEST_P(TrainerOnTwoRanksCuda, ErrInAStepAtMostTwiceAsMuchAsThePlainModelInBf16) {
  StepErrors errors;
  for (const TinyCase& tiny : cases())
    errors.add(tiny, 0, true, train(tiny, recorded_groups(tiny, 0)).step);
  errors.expect_right_losses();
}

TEST_P(TrainerOnTwoRanksCuda, GiveTheSameBitsUnderEverySchedule) {
  const TinyCase tiny = cases()[2];
  const auto groups = recorded_groups(tiny, 0);
  const Trained first = train(tiny, groups);
  set_device_schedule(1 + ranks_session().rank());  // another one for each rank
  const Trained other = train(tiny, groups);
  set_device_schedule(0);
  EXPECT_EQ(other.step.loss, first.step.loss);
  EXPECT_EQ(other.step.gradients, first.step.gradients);
  EXPECT_EQ(other.after, first.after);
}

constexpr auto kSequence = SequenceParallel::kYes;

std::string axis_of(const testing::TestParamInfo<GridCase>& info) {
  const GridCase& grid = info.param;
  if (grid.sizes.context == 2) return "Context";
  if (grid.sizes.data == 2) return "Data";
  return grid.sequence_parallel == kSequence ? "Sequence" : "Tensor";
}

INSTANTIATE_TEST_SUITE_P(Axes, TrainerOnTwoRanksCuda,
                         testing::Values(GridCase{{2, 1, 1}}, GridCase{{2, 1, 1}, kSequence},
                                         GridCase{{1, 2, 1}}, GridCase{{1, 1, 2}}),
                         axis_of);

}  // namespace
}  // namespace coppice
