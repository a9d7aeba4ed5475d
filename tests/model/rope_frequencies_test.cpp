// Frequencies worked by hand: head_dim 8 and theta 16 make the plain ones 1, 1/2, 1/4, 1/8.
#include "layers/rope_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace coppice {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

constexpr double kTiny = 1e-14;

RopeConfig of_type(RopeType type) {
  RopeConfig config;
  config.type = type;
  config.theta = 16;
  config.factor = 4;
  config.original_max_position_embeddings = 20;
  return config;
}

// Mutation seen red: exponent i / head_dim instead of 2 i / head_dim.
TEST(RopeFrequencies, FallGeometricallyFromOne) {
  EXPECT_THAT(
      rope_frequencies(of_type(RopeType::kDefault), 8),
      ElementsAre(1.0, DoubleNear(0.5, kTiny), DoubleNear(0.25, kTiny), DoubleNear(0.125, kTiny)));
}

TEST(RopeFrequencies, LinearDividesAllByTheFactor) {
  EXPECT_THAT(rope_frequencies(of_type(RopeType::kLinear), 8),
              ElementsAre(0.25, DoubleNear(0.125, kTiny), DoubleNear(0.0625, kTiny),
                          DoubleNear(0.03125, kTiny)));
}

// In 20 positions the pairs turn 20 / 2 pi = 3.18, 1.59, 0.80, 0.40 times. With bounds 1 and 2 the
// first is kept, the last two divided, the second blended by 1.59 - 1.
// Mutation seen red: the two bounds exchanged; the blend turned round.
TEST(RopeFrequencies, Llama3KeepsShortWavesDividesLongOnesAndBlendsBetween) {
  RopeConfig config = of_type(RopeType::kLlama3);
  config.low_freq_factor = 1;
  config.high_freq_factor = 2;
  const double smooth = 20 * 0.5 / (2 * std::numbers::pi) - 1;
  EXPECT_THAT(rope_frequencies(config, 8),
              ElementsAre(1.0, DoubleNear((1 - smooth) * 0.5 / 4 + smooth * 0.5, kTiny),
                          DoubleNear(0.25 / 4, kTiny), DoubleNear(0.125 / 4, kTiny)));
}

// Pair 4 ln(20 / (2 pi t)) / ln 16 turns t times: 0.67 for t = 2, 1.67 for t = 1. Truncated, the
// ramp goes from pair 0 to pair 2: kept, half, divided, divided.
// Mutation seen red: floor and ceil exchanged; the ramp turned round.
TEST(RopeFrequencies, YarnRampsBetweenThePairsOfItsTwoBounds) {
  RopeConfig config = of_type(RopeType::kYarn);
  config.beta_fast = 2;
  config.beta_slow = 1;
  EXPECT_THAT(rope_frequencies(config, 8),
              ElementsAre(1.0, DoubleNear(0.3125, kTiny), DoubleNear(0.25 / 4, kTiny),
                          DoubleNear(0.125 / 4, kTiny)));
  config.truncate = false;
  const double low = 4 * std::log(20 / (4 * std::numbers::pi)) / std::log(16);
  const double ramp = 1 - low;  // the bounds are one pair apart
  EXPECT_THAT(rope_frequencies(config, 8),
              ElementsAre(1.0, DoubleNear(0.5 / 4 * ramp + 0.5 * (1 - ramp), kTiny),
                          DoubleNear(0.25 / 4, kTiny), DoubleNear(0.125 / 4, kTiny)));
}

TEST(RopeAttentionFactor, IsOneButForYarn) {
  for (auto type : {RopeType::kDefault, RopeType::kLinear, RopeType::kLlama3}) {
    EXPECT_EQ(rope_attention_factor(of_type(type)), 1.0);
  }
}

TEST(RopeAttentionFactor, OfYarnGrowsWithTheLogarithmOfTheFactor) {
  RopeConfig config = of_type(RopeType::kYarn);
  EXPECT_DOUBLE_EQ(rope_attention_factor(config), 0.1 * std::log(4.0) + 1);
  config.factor = 1;
  EXPECT_EQ(rope_attention_factor(config), 1.0);
}

TEST(RopeAttentionFactor, OfYarnIsTheGivenOneOrARatioOfMscales) {
  RopeConfig config = of_type(RopeType::kYarn);
  config.mscale = 2;
  EXPECT_DOUBLE_EQ(rope_attention_factor(config), 0.1 * std::log(4.0) + 1);  // both are needed
  config.mscale_all_dim = 0.5;
  EXPECT_DOUBLE_EQ(rope_attention_factor(config),
                   (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  config.attention_factor = 0.75;
  EXPECT_EQ(rope_attention_factor(config), 0.75);
}

TEST(RopeFrequencies, NeedAnEvenHeadDim) { EXPECT_THROW(rope_frequencies({}, 7), ContractError); }

}  // namespace
}  // namespace coppice
