#include "core/rng.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace coppice {
namespace {

// Known-answer vectors published with Random123 (philox4x32, 10 rounds).
TEST(Rng, PhiloxGivesThePublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, AStreamIsAFunctionOfSeedNameAndIndexOnly) {
  const RandomStream stream(7, "init/a");
  const double forward = stream.normal(5);
  stream.normal(6);
  EXPECT_EQ(stream.normal(5), forward);
  EXPECT_EQ(RandomStream(7, "init/a").normal(5), forward);
  EXPECT_NE(RandomStream(8, "init/a").normal(5), forward);
  EXPECT_NE(RandomStream(7, "init/b").normal(5), forward);
}

// n = 100000: the mean of a standard normal is within 5/sqrt(n), its second moment within
// 5 sqrt(2/n), its fourth within 5 sqrt(96/n), with odds of about one in a million each.
TEST(Rng, NormalValuesHaveTheMomentsOfANormal) {
  const RandomStream stream(1, "moments");
  const int n = 100000;
  double sum = 0, sum2 = 0, sum4 = 0;
  for (int i = 0; i < n; ++i) {
    const double x = stream.normal(static_cast<std::uint64_t>(i));
    sum += x;
    sum2 += x * x;
    sum4 += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(sum2 / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(sum4 / n, 3, 5 * std::sqrt(96.0 / n));
}

TEST(Rng, BelowIsUniformAndNeverReachesItsBound) {
  const RandomStream stream(1, "below");
  const int n = 70000;
  std::vector<int> counts(7);
  for (int i = 0; i < n; ++i) ++counts.at(stream.below(7, static_cast<std::uint64_t>(i)));
  for (const int count : counts) EXPECT_NEAR(count, n / 7, 5 * std::sqrt(n / 7.0));
  EXPECT_EQ(stream.below(1, 0), 0U);
}

TEST(Rng, UniformStaysInsideTheOpenInterval) {
  const RandomStream stream(1, "uniform");
  std::set<double> values;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double u = stream.uniform(i);
    EXPECT_GT(u, 0.0);
    EXPECT_LT(u, 1.0);
    values.insert(u);
  }
  EXPECT_EQ(values.size(), 1000U);
}

}  // namespace
}  // namespace coppice
