// A whole GRPO training step in bf16 of two ranks that share one CUDA device, real or emulated,
// along every axis: held against a plain model in double as one rank is (rl/trainer_cuda_test.cpp),
// with the same bits under every schedule and on every rank that holds the same.
#include <gtest/gtest.h>

#include "model/communication_plan.hpp"
#include "ranks/trained_step.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using namespace test;

class TrainerOnTwoRanksCuda : public testing::TestWithParam<GridCase> {
 protected:
  static Trained train(const TinyCase& tiny, const std::vector<Group>& groups) {
    return test::train(GetParam(), tiny, groups, GridDevice::Axes::kStaged);
  }
};

// Mutations seen red: gradients of a key-value head that both tensor ranks hold not summed; sums
// over tensor ranks left out for bf16; another rank's rows of a sum rounded under sequence
// parallelism; what the other context rank's rows send back to keys and values dropped; updated
// bf16 values not gathered; each of the two waits of a staged collective left out.
TEST_P(TrainerOnTwoRanksCuda, ErrInAStepAtMostTwiceAsMuchAsThePlainModelInBf16) {
  StepErrors errors;
  for (const TinyCase& tiny : step_cases())
    errors.add(tiny, 0, true, train(tiny, recorded_groups(tiny, 0)).step);
  errors.expect_right_losses();
}

TEST_P(TrainerOnTwoRanksCuda, GiveTheSameBitsUnderEverySchedule) {
  const TinyCase tiny = step_cases()[2];
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
