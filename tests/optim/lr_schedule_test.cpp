// The schedule against values worked by hand.
#include "optim/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"

namespace coppice {
namespace {

// Mutation seen red: warm-up over s - 1.
TEST(LrSchedule, WarmsUpLinearlyAndReachesTheFullRateAtTheLastWarmUpStep) {
  for (auto kind : {LrScheduleKind::kConstant, LrScheduleKind::kCosine, LrScheduleKind::kLinear}) {
    const LrSchedule schedule{kind, 8.0, 4, 12};
    EXPECT_EQ(schedule.at(1), 2.0);
    EXPECT_EQ(schedule.at(2), 4.0);
    EXPECT_EQ(schedule.at(3), 6.0);
    EXPECT_EQ(schedule.at(4), 8.0);
  }
}

TEST(LrSchedule, ConstantStaysWhateverTheTotal) {
  const LrSchedule schedule{LrScheduleKind::kConstant, 3.0, 0, 2};
  EXPECT_EQ(schedule.at(1), 3.0);
  EXPECT_EQ(schedule.at(1000), 3.0);
}

// warmup 4, total 12: x = (s - 4) / 8.  Mutation seen red: x = s / total.
TEST(LrSchedule, LinearFallsToZeroAtTheTotalAndStaysThere) {
  const LrSchedule schedule{LrScheduleKind::kLinear, 8.0, 4, 12};
  EXPECT_EQ(schedule.at(5), 7.0);
  EXPECT_EQ(schedule.at(8), 4.0);
  EXPECT_EQ(schedule.at(12), 0.0);
  EXPECT_EQ(schedule.at(13), 0.0);
}

TEST(LrSchedule, CosineIsHalfwayInTheMiddleAndZeroAtTheEnd) {
  const LrSchedule schedule{LrScheduleKind::kCosine, 8.0, 4, 12};
  EXPECT_NEAR(schedule.at(6), 8.0 * (1 + std::sqrt(0.5)) / 2, 1e-14);  // x = 1/4
  EXPECT_NEAR(schedule.at(8), 4.0, 1e-14);
  EXPECT_NEAR(schedule.at(12), 0.0, 1e-14);
  EXPECT_NEAR(schedule.at(99), 0.0, 1e-14);
}

TEST(LrSchedule, WithoutWarmUpTheFirstUpdateIsAlreadyOneStepDown) {
  const LrSchedule schedule{LrScheduleKind::kLinear, 10.0, 0, 10};
  EXPECT_EQ(schedule.at(1), 9.0);
}

TEST(LrSchedule, AWarmUpThatFillsTheTotalIsFollowedByZero) {
  const LrSchedule schedule{LrScheduleKind::kLinear, 8.0, 4, 4};
  EXPECT_EQ(schedule.at(4), 8.0);
  EXPECT_EQ(schedule.at(5), 0.0);
}

TEST(LrSchedule, UpdatesCountFromOne) {
  EXPECT_THROW(static_cast<void>(LrSchedule{}.at(0)), ContractError);
}

}  // namespace
}  // namespace coppice
