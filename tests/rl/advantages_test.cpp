// Group advantages against numbers worked by hand.
#include "rl/advantages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace coppice {
namespace {

using testing::Each;
using testing::ElementsAre;

// Rewards 1, 0, 0, 0: mean 0.25, squares 0.5625 + 3 * 0.0625 = 0.75, unbiased std sqrt(0.25) = 0.5.
TEST(Advantages, DivideByTheUnbiasedStdOfTheGroup) {
  const std::vector<double> rewards = {1, 0, 0, 0};
  const auto advantages = group_advantages(rewards, default_advantage(LossKind::kGrpo));
  const double d = 0.5 + 1e-6;
  EXPECT_THAT(advantages, ElementsAre(0.75 / d, -0.25 / d, -0.25 / d, -0.25 / d));
}

TEST(Advantages, WithoutNormalizationOnlyTheMeanIsTaken) {
  const std::vector<double> rewards = {1, 0, 0, 0};
  EXPECT_THAT(group_advantages(rewards, default_advantage(LossKind::kDrGrpo)),
              ElementsAre(0.75, -0.25, -0.25, -0.25));
}

// 0.1 + 0.1 + 0.1 is not 3 * 0.1 in double: the mean differs from each. Seen red without the
// test of max = min.
TEST(Advantages, OfZeroSpreadOrOneResponseAreExactlyZero) {
  for (const LossKind kind : {LossKind::kGrpo, LossKind::kDrGrpo}) {
    const std::vector<double> equal = {0.1, 0.1, 0.1}, one = {3.5};
    EXPECT_TRUE(has_zero_spread(equal));
    EXPECT_THAT(group_advantages(equal, default_advantage(kind)), Each(0.0));
    EXPECT_THAT(group_advantages(one, default_advantage(kind)), ElementsAre(0.0));
  }
}

TEST(Advantages, TheSmallestSpreadIsASpread) {
  const std::vector<double> rewards = {0.1, std::nextafter(0.1, 1.0)};
  EXPECT_FALSE(has_zero_spread(rewards));
}

}  // namespace
}  // namespace coppice
