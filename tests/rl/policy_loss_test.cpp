// Losses against numbers worked by hand, and their coefficients against finite differences of the
// loss value, for every combination of kind, KL estimator and aggregation.
#include "rl/policy_loss.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "core/error.hpp"
#include "core/rng.hpp"

namespace coppice {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One response that owns its figures; by default on policy, all tokens in the loss, weight 1.
struct Case {
  std::vector<double> logprobs, entropies, old_logprobs, ref_logprobs, advantages;
  std::vector<std::uint8_t> mask;
  double weight = 1.0;

  ResponseSpans spans() const {
    return {logprobs, entropies, old_logprobs, ref_logprobs, advantages, mask, weight};
  }
};

struct Result {
  std::vector<double> c, e;
  LossSums sums;
};

Result run(const LossConfig& config, const Case& response) {
  Result result{std::vector<double>(response.mask.size(), kNan),
                std::vector<double>(response.mask.size(), kNan),
                {}};
  policy_loss(config, response.spans(), result.c, result.e, result.sums);
  return result;
}

// A token with the given log-ratio (old log-prob -1) and advantage.
Case token(double log_ratio, double advantage) {
  return {{-1.0 + log_ratio}, {0.5}, {-1.0}, {}, {advantage}, {1}};
}

TEST(PolicyLoss, OnPolicyTheRatioIsExactlyOneAndCIsMinusAdvantageTimesWeight) {
  const Case response{{-0.1, -7.3, -1e-9}, {1, 2, 3}, {}, {}, {0.7, -1.3, 0.0}, {1, 1, 1}, 0.125};
  const Result result = run(default_loss(LossKind::kGrpo), response);
  EXPECT_THAT(result.c, testing::ElementsAre(-0.7 * 0.125, 1.3 * 0.125, 0.0));
  EXPECT_THAT(result.e, testing::Each(0.0));
  EXPECT_EQ(result.sums.ratio / 3, 1.0);
  EXPECT_EQ(result.sums.ratio_max, 1.0);
  EXPECT_EQ(result.sums.clipped, 0);
  EXPECT_EQ(result.sums.entropy, 6.0);
  EXPECT_EQ(result.sums.kl_tokens, 0);
  EXPECT_DOUBLE_EQ(result.sums.policy_loss, 0.125 * (-0.7 + 1.3));
}

// k3 of a policy against itself: exp(0) - 0 - 1 = 0, slope 1 - exp(0) = 0, both exactly.
TEST(PolicyLoss, KlAgainstItselfIsExactlyZero) {
  LossConfig config = default_loss(LossKind::kGrpo);
  config.kl_coef = 0.3;
  const Case response{{-0.1, -7.3}, {1, 2}, {}, {-0.1, -7.3}, {0.0, 0.0}, {1, 1}};
  const Result result = run(config, response);
  EXPECT_EQ(result.sums.kl, 0.0);
  EXPECT_EQ(result.sums.loss, 0.0);
  EXPECT_THAT(result.c, testing::Each(0.0));
}

// clip 0.2 / 0.2, dual clip 3. r = exp(log ratio).
TEST(PolicyLoss, ClipsAsWorkedByHand) {
  LossConfig config = default_loss(LossKind::kGrpo);
  config.dual_clip = 3.0;
  struct Row {
    double ratio, advantage, policy, c;
    bool clipped;
  };
  for (const Row& row : {Row{1.1, 2.0, -2.2, -2.2, false},   // inside
                         Row{1.5, 2.0, -2.4, 0.0, true},     // -A (1 + 0.2)
                         Row{0.5, 2.0, -1.0, -1.0, false},   // below: no bound for A > 0
                         Row{0.5, -2.0, 1.6, 0.0, true},     // -A (1 - 0.2)
                         Row{1.5, -2.0, 3.0, 3.0, false},    // above: no bound below c_d
                         Row{4.0, -2.0, 6.0, 0.0, true},     // -A c_d
                         Row{4.0, 0.0, 0.0, 0.0, false}}) {  // A = 0 is never clipped
    const Result result = run(config, token(std::log(row.ratio), row.advantage));
    EXPECT_NEAR(result.sums.policy_loss, row.policy, 1e-14) << row.ratio << " " << row.advantage;
    EXPECT_NEAR(result.c[0], row.c, 1e-14) << row.ratio << " " << row.advantage;
    EXPECT_EQ(result.sums.clipped, row.clipped) << row.ratio << " " << row.advantage;
  }
  config.dual_clip = 0.0;
  EXPECT_NEAR(run(config, token(std::log(4.0), -2.0)).c[0], 8.0, 1e-14);
}

// Seen red with the bound `r <= 1 + clip_high` turned to `r < 1 + clip_high`.
TEST(PolicyLoss, ARatioExactlyAtABoundIsNotClipped) {
  LossConfig config = default_loss(LossKind::kGrpo);
  config.clip_high = 0.0;
  config.clip_low = 0.0;
  EXPECT_EQ(run(config, token(0.0, 2.0)).c[0], -2.0);
  EXPECT_EQ(run(config, token(0.0, -2.0)).c[0], 2.0);
}

TEST(PolicyLoss, BeyondTheLargestLogRatioCIsZeroAndTheTokenClippedUnlessAdvantageIsZero) {
  const LossConfig config = default_loss(LossKind::kGrpo);
  for (const double log_ratio : {25.0, -25.0, kInfinity, -kInfinity})
    for (const double advantage : {1.0, -1.0, 0.0}) {
      Case response = token(0, advantage);
      response.old_logprobs[0] = response.logprobs[0] - log_ratio;
      const Result result = run(config, response);
      EXPECT_EQ(result.c[0], 0.0);
      EXPECT_EQ(result.sums.clipped, advantage != 0.0);
      EXPECT_EQ(result.sums.ratio, std::exp(log_ratio > 0 ? 20.0 : -20.0));
      EXPECT_TRUE(std::isfinite(result.sums.loss));
    }
}

TEST(PolicyLoss, DapoClipsHigherThanGrpo) {
  EXPECT_EQ(run(default_loss(LossKind::kGrpo), token(std::log(1.25), 1.0)).sums.clipped, 1);
  EXPECT_EQ(run(default_loss(LossKind::kDapo), token(std::log(1.25), 1.0)).sums.clipped, 0);
  EXPECT_EQ(run(default_loss(LossKind::kDapo), token(std::log(1.29), 1.0)).sums.clipped, 1);
}

TEST(PolicyLoss, SupervisedIsTheNegativeLogprob) {
  const Case response{{-0.5, -2.0}, {1, 2}, {}, {}, {}, {1, 1}, 0.5};
  const Result result = run(default_loss(LossKind::kSft), response);
  EXPECT_EQ(result.sums.loss, 1.25);
  EXPECT_THAT(result.c, testing::Each(-0.5));
}

// ref - cur = 0.5: k1 -0.5, k2 0.125, k3 exp(0.5) - 1.5.
TEST(PolicyLoss, KlEstimatorsAsWorkedByHand) {
  Case response{{-1.0}, {0.0}, {}, {-0.5}, {0.0}, {1}};
  LossConfig config = default_loss(LossKind::kGrpo);
  config.kl_coef = 2.0;
  config.kl_estimator = KlEstimator::kK1;
  EXPECT_DOUBLE_EQ(run(config, response).sums.loss, -1.0);
  EXPECT_DOUBLE_EQ(run(config, response).c[0], 2.0);
  config.kl_estimator = KlEstimator::kK2;
  EXPECT_DOUBLE_EQ(run(config, response).sums.loss, 0.25);
  EXPECT_DOUBLE_EQ(run(config, response).c[0], -1.0);
  config.kl_estimator = KlEstimator::kK3;
  EXPECT_DOUBLE_EQ(run(config, response).sums.loss, 2 * (std::exp(0.5) - 1.5));
  EXPECT_DOUBLE_EQ(run(config, response).c[0], 2 * (1 - std::exp(0.5)));
  // Where no KL enters the loss the metric is k3, and the loss does not see it.
  config.kl_estimator = KlEstimator::kK1;
  config.kl_coef = 0.0;
  const Result result = run(config, response);
  EXPECT_DOUBLE_EQ(result.sums.kl, std::exp(0.5) - 1.5);
  EXPECT_EQ(result.sums.loss, 0.0);
  EXPECT_EQ(result.c[0], 0.0);
}

TEST(PolicyLoss, K3FarFromTheReferenceIsFiniteInValueAndSlope) {
  LossConfig config = default_loss(LossKind::kGrpo);
  config.kl_coef = 1.0;
  for (const double d : {200.0, -200.0}) {
    const Result result = run(config, {{-1.0}, {0.0}, {}, {-1.0 + d}, {0.0}, {1}});
    EXPECT_EQ(result.sums.kl, std::exp(d > 0 ? 20.0 : -20.0) - (d > 0 ? 20.0 : -20.0) - 1.0);
    EXPECT_EQ(result.c[0], 0.0);
  }
}

// Seen red without the selection by the mask.
TEST(PolicyLoss, GarbageWhereTheMaskIsZeroChangesNoBit) {
  LossConfig config = default_loss(LossKind::kDapo);
  config.kl_coef = 0.1;
  config.entropy_coef = 0.01;
  Case clean{{-1, -2, -3}, {1, 2, 3}, {-1.1, -2, -2.7}, {-1, -2.5, -3}, {1, -1, 0.5}, {1, 0, 1}};
  const Result expected = run(config, clean);
  for (const double garbage : {kNan, kInfinity, -kInfinity, 1e38, -1e308}) {
    Case dirty = clean;
    for (auto* values : {&dirty.logprobs, &dirty.entropies, &dirty.old_logprobs,
                         &dirty.ref_logprobs, &dirty.advantages})
      (*values)[1] = garbage;
    const Result result = run(config, dirty);
    EXPECT_EQ(result.c, expected.c);
    EXPECT_EQ(result.e, expected.e);
    EXPECT_EQ(result.sums.loss, expected.sums.loss);
    EXPECT_EQ(result.sums.kl, expected.sums.kl);
    EXPECT_EQ(result.sums.ratio_max, expected.sums.ratio_max);
  }
}

TEST(PolicyLoss, ANanLogprobShowsInTheLoss) {
  for (const double advantage : {1.0, -1.0, 0.0}) {
    const Case on_policy{{kNan}, {0.0}, {}, {}, {advantage}, {1}};
    EXPECT_TRUE(std::isnan(run(default_loss(LossKind::kGrpo), on_policy).sums.loss));
    Case off_policy = on_policy;
    off_policy.old_logprobs = {-1.0};
    EXPECT_TRUE(std::isnan(run(default_loss(LossKind::kGrpo), off_policy).sums.loss));
  }
}

TEST(PolicyLoss, AnEmptyResponseGivesNothing) {
  const Result result = run(default_loss(LossKind::kGrpo), {});
  EXPECT_EQ(result.sums.tokens, 0);
  EXPECT_EQ(result.sums.loss, 0.0);
}

TEST(PolicyLoss, RefusesSpansThatDisagree) {
  Case response = token(0, 1);
  response.advantages = {1, 2};
  EXPECT_THROW(run(default_loss(LossKind::kGrpo), response), ContractError);
  response.advantages = {};
  EXPECT_THROW(run(default_loss(LossKind::kGrpo), response), ContractError);
}

// Responses of 1 and 3 tokens, per-token losses 2 | 0.2, 0.2, 0.2: (2 + 0.6) / 4 = 0.65; the mean
// of means would be (2 + 0.2) / 2 = 1.1, which is what sequence_mean_token_mean means.
TEST(TokenWeight, NormalisesAsWorkedByHand) {
  BatchTotals totals;
  for (const std::int64_t tokens : {1, 3, 0}) totals.count(tokens);
  EXPECT_EQ(totals.sequences, 2);
  const auto loss = [&](Aggregation aggregation) {
    LossConfig config = default_loss(LossKind::kSft);
    config.aggregation = aggregation;
    config.max_response_length = 10;
    LossSums sums;
    for (const Case& base :
         {Case{{-2}, {0}, {}, {}, {}, {1}},
          Case{{-0.2, kNan, -0.2, -0.2}, {0, 0, 0, 0}, {}, {}, {}, {1, 0, 1, 1}}, Case{}}) {
      Case response = base;
      response.weight =
          token_weight(config, totals, std::count(base.mask.begin(), base.mask.end(), 1));
      sums.add(run(config, response).sums);
    }
    return sums.loss;
  };
  EXPECT_NEAR(loss(Aggregation::kTokenMean), 0.65, 1e-15);
  EXPECT_NEAR(loss(Aggregation::kSequenceMeanTokenMean), 1.1, 1e-15);
  EXPECT_NEAR(loss(Aggregation::kSequenceMeanTokenSumNorm), 2.6 / 20, 1e-15);
}

TEST(LossDefaults, AreThoseOfTheKinds) {
  EXPECT_EQ(default_loss(LossKind::kGrpo).aggregation, Aggregation::kSequenceMeanTokenMean);
  EXPECT_EQ(default_loss(LossKind::kDapo).aggregation, Aggregation::kTokenMean);
  EXPECT_EQ(default_loss(LossKind::kDapo).clip_high, 0.28);
  EXPECT_EQ(default_loss(LossKind::kDrGrpo).aggregation, Aggregation::kSequenceMeanTokenSumNorm);
  EXPECT_EQ(default_loss(LossKind::kSft).aggregation, Aggregation::kTokenMean);
  EXPECT_EQ(default_advantage(LossKind::kDrGrpo).normalization, AdvantageNormalization::kNone);
  EXPECT_EQ(default_advantage(LossKind::kDapo).normalization, AdvantageNormalization::kStd);
}

using Combination = std::tuple<LossKind, KlEstimator, Aggregation, bool /*with KL*/>;

class PolicyLossGradient : public testing::TestWithParam<Combination> {};

// Random tokens, none within the difference's reach of a bound. Seen red with the sign of any one
// term's slope turned, with k3's slope exp(d) - 1, and with the weight left out of e.
TEST_P(PolicyLossGradient, CoefficientsEqualFiniteDifferences) {
  const auto [kind, estimator, aggregation, with_kl] = GetParam();
  LossConfig config = default_loss(kind);
  config.kl_estimator = estimator;
  config.aggregation = aggregation;
  config.max_response_length = 50;
  config.kl_coef = with_kl ? 0.7 : 0.0;
  config.entropy_coef = 0.3;
  config.dual_clip = 2.5;

  constexpr std::size_t kTokens = 64;
  const RandomStream random(7, "policy loss");
  Case response;
  for (std::size_t t = 0; t < kTokens; ++t) {
    response.logprobs.push_back(-3.0 * random.uniform(t));
    response.entropies.push_back(4.0 * random.uniform(1000 + t));
    response.old_logprobs.push_back(response.logprobs[t] + 0.6 * random.normal(2000 + t));
    response.ref_logprobs.push_back(response.logprobs[t] + random.normal(3000 + t));
    response.advantages.push_back(random.normal(4000 + t));
    response.mask.push_back(random.uniform(5000 + t) < 0.8);
  }
  // Both clamps act on one token each.
  response.old_logprobs[3] = response.logprobs[3] - 30.0;
  response.ref_logprobs[5] = response.logprobs[5] + 30.0;
  response.mask[3] = response.mask[5] = 1;
  const auto count = std::count(response.mask.begin(), response.mask.end(), 1);
  BatchTotals totals;
  totals.count(count);
  totals.count(17);  // another response of the batch
  response.weight = token_weight(config, totals, count);

  const Result at = run(config, response);
  constexpr double kStep = 1e-6;
  const auto difference = [&](std::vector<double> Case::*field, std::size_t t) {
    Case moved = response;
    (moved.*field)[t] += kStep;
    const double above = run(config, moved).sums.loss;
    (moved.*field)[t] -= 2 * kStep;
    return (above - run(config, moved).sums.loss) / (2 * kStep);
  };
  for (std::size_t t = 0; t < kTokens; ++t) {
    // Error of a central difference: curvature * step^2, and rounding of the sum / step.
    const double tolerance = 1e-9 * std::max(1.0, std::abs(at.sums.loss));
    EXPECT_NEAR(at.c[t], difference(&Case::logprobs, t), tolerance) << t;
    EXPECT_NEAR(at.e[t], difference(&Case::entropies, t), tolerance) << t;
  }
  if (traits_of(kind).uses_advantages) {
    EXPECT_GT(at.sums.clipped, 3);
  }
}

std::string combination_name(const testing::TestParamInfo<Combination>& info) {
  const auto [kind, estimator, aggregation, with_kl] = info.param;
  static constexpr const char* kAggregations[] = {"TokenMean", "SequenceMean", "SumNorm"};
  std::string name(traits_of(kind).name);
  std::erase(name, '_');
  return name + (with_kl ? "K" + std::to_string(static_cast<int>(estimator) + 1) : "NoKl") +
         kAggregations[static_cast<int>(aggregation)];
}

constexpr Aggregation kAllAggregations[] = {Aggregation::kTokenMean,
                                            Aggregation::kSequenceMeanTokenMean,
                                            Aggregation::kSequenceMeanTokenSumNorm};
constexpr LossKind kAllKinds[] = {LossKind::kGrpo, LossKind::kDapo, LossKind::kDrGrpo,
                                  LossKind::kSft};
INSTANTIATE_TEST_SUITE_P(
    WithKl, PolicyLossGradient,
    testing::Combine(testing::ValuesIn(kAllKinds),
                     testing::Values(KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3),
                     testing::ValuesIn(kAllAggregations), testing::Values(true)),
    combination_name);
INSTANTIATE_TEST_SUITE_P(WithoutKl, PolicyLossGradient,
                         testing::Combine(testing::ValuesIn(kAllKinds),
                                          testing::Values(KlEstimator::kK3),
                                          testing::ValuesIn(kAllAggregations),
                                          testing::Values(false)),
                         combination_name);

}  // namespace
}  // namespace coppice
