// The numbers of a step that must not depend on how it is cut: weights, advantages, figures. Worked
// by hand.
#include "rl/step_batch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rl/microbatch_planner.hpp"

namespace coppice {
namespace {

Response response_of(std::vector<std::int32_t> ids, double reward) {
  Response response;
  response.loss_mask.assign(ids.size(), 1);
  response.ids = std::move(ids);
  response.reward = reward;
  return response;
}

// Rewards 1 and 0 (mean 0.5, std sqrt(0.5)); then two equal ones.
std::vector<Group> two_groups() {
  Group spread{"spread", {1, 2}, {response_of({3, 4, 5}, 1.0), response_of({6}, 0.0)}, 1};
  Group equal{"equal", {1}, {response_of({7, 8}, 0.5), response_of({9}, 0.5)}, 2};
  equal.responses[1].truncated = true;
  return {spread, equal};
}

TEST(StepBatch, FiguresAsWorkedByHand) {
  const StepBatch batch(two_groups(), default_loss(LossKind::kGrpo),
                        default_advantage(LossKind::kGrpo));
  const BatchFigures& f = batch.figures();
  EXPECT_EQ(f.groups, 2);
  EXPECT_EQ(f.responses, 4);
  EXPECT_EQ(f.truncated_responses, 1);
  EXPECT_EQ(f.response_ids, 7);
  EXPECT_EQ(f.logical_rows, (2 + 3) + (2 + 1) + (1 + 2) + (1 + 1));
  EXPECT_EQ(f.zero_std_groups, 1);
  EXPECT_DOUBLE_EQ(*f.reward_mean, 0.5);
  EXPECT_DOUBLE_EQ(*f.reward_std, std::sqrt(0.5 / 3));
  EXPECT_DOUBLE_EQ(*f.advantage_abs_mean, 0.5 / (std::sqrt(0.5) + 1e-6) / 2);
  EXPECT_EQ(batch.totals().tokens, 7);
  EXPECT_EQ(batch.totals().sequences, 4);
}

TEST(StepBatch, DroppedGroupsEnterNothingButTheirOwnCount) {
  AdvantageConfig advantage = default_advantage(LossKind::kGrpo);
  advantage.drop_zero_std_groups = true;
  const StepBatch batch(two_groups(), default_loss(LossKind::kGrpo), advantage);
  EXPECT_EQ(batch.groups().size(), 1u);
  EXPECT_EQ(batch.figures().zero_std_groups, 1);
  EXPECT_EQ(batch.figures().responses, 2);
  EXPECT_EQ(batch.figures().truncated_responses, 0);
  EXPECT_EQ(batch.totals().tokens, 4);
  EXPECT_DOUBLE_EQ(*batch.figures().reward_mean, 0.5);
}

TEST(StepBatch, GroupsWithTheirOwnAdvantagesHaveNoSpreadAndAreNotDropped) {
  auto groups = two_groups();
  groups[1].responses[0].advantages = {3.0, -1.0};
  groups[1].responses[1].advantages = {std::numeric_limits<double>::quiet_NaN()};
  groups[1].responses[1].loss_mask = {0};
  AdvantageConfig advantage = default_advantage(LossKind::kDrGrpo);
  advantage.drop_zero_std_groups = true;
  const StepBatch batch(groups, default_loss(LossKind::kDapo), advantage);
  EXPECT_EQ(batch.figures().zero_std_groups, 0);
  EXPECT_EQ(batch.figures().groups, 2);
  // 0.5 and 0.5 by the formula, (3 + 1) / 2 given; the response without learning tokens has none.
  EXPECT_DOUBLE_EQ(*batch.figures().advantage_abs_mean, (0.5 + 0.5 + 2.0) / 3);
}

TEST(StepBatch, StatisticsTakeMaskedTruncatedAndEmptyResponsesToo) {
  auto groups = two_groups();
  groups.pop_back();
  groups[0].responses.push_back(response_of({}, 0.0));
  groups[0].responses.push_back(response_of({5}, 0.0));
  groups[0].responses[3].loss_mask = {0};
  const StepBatch batch(groups, default_loss(LossKind::kGrpo),
                        default_advantage(LossKind::kDrGrpo));
  EXPECT_DOUBLE_EQ(*batch.figures().advantage_abs_mean, (0.75 + 3 * 0.25) / 4);  // mean 0.25
  EXPECT_EQ(batch.totals().sequences, 2);
}

TEST(StepBatch, SupervisedHasNoRewardsAndNeedsNone) {
  auto groups = two_groups();
  for (Group& group : groups)
    for (Response& response : group.responses) response.reward.reset();
  const StepBatch batch(groups, default_loss(LossKind::kSft), default_advantage(LossKind::kSft));
  EXPECT_FALSE(batch.figures().reward_mean.has_value());
  EXPECT_FALSE(batch.figures().advantage_abs_mean.has_value());
  EXPECT_FALSE(batch.has_old_logprobs());
}

// Log-probs by (group, response, offset); the loss of a batch must not see the packing.
double made_up(const PredictionEdge& edge) {
  return -0.1 - 0.3 * edge.group - 0.07 * edge.response - 0.01 * edge.offset;
}

TEST(StepBatch, SumsAndCoefficientsAreBitEqualForEveryCut) {
  auto groups = two_groups();
  for (Group& group : groups)
    for (Response& response : group.responses)
      response.old_logprobs.assign(response.ids.size(), -0.2);
  LossConfig loss = default_loss(LossKind::kDapo);
  loss.entropy_coef = 0.01;
  const auto run = [&](BatchingConfig batching) {
    StepBatch batch(groups, loss, default_advantage(LossKind::kDapo));
    std::vector<double> by_token(64, 0.0);
    const auto plan = plan_microbatches(batch.groups(), batching, EdgeTokens::kInLoss,
                                        [](const PackedWork&) { return 0.0; });
    for (const Microbatch& microbatch : plan.microbatches) {
      const PackedBatch packed = pack(batch.groups(), microbatch, EdgeTokens::kInLoss);
      const std::size_t edges = packed.edges.size();
      std::vector<double> logprobs(edges), entropies(edges, 2.0), c(edges), e(edges);
      for (std::size_t i = 0; i < edges; ++i) logprobs[i] = made_up(packed.edges[i]);
      // In two chunks, as the head calls it.
      const auto coefficients = batch.coefficients(packed);
      const std::size_t half = edges / 2;
      const std::span<const double> lp(logprobs), h(entropies);
      coefficients(0, lp.first(half), h.first(half), std::span(c).first(half),
                   std::span(e).first(half));
      coefficients(static_cast<std::int64_t>(half), lp.subspan(half), h.subspan(half),
                   std::span(c).subspan(half), std::span(e).subspan(half));
      for (std::size_t i = 0; i < edges; ++i)
        by_token[packed.edges[i].group * 32 + packed.edges[i].response * 16 +
                 packed.edges[i].offset] = c[i];
      batch.keep(packed, logprobs, entropies);
    }
    const LossSums sums = batch.sums();
    return std::tuple(by_token, sums.loss, sums.ratio, sums.entropy, sums.tokens);
  };
  const auto whole = run({Sharing::kGrouped, 100});
  EXPECT_EQ(std::get<4>(whole), 7);
  EXPECT_EQ(whole, run({Sharing::kGrouped, 6}));
  EXPECT_EQ(whole, run({Sharing::kRepeated, 5}));
  EXPECT_EQ(whole, run({Sharing::kAuto, 5}));
}

TEST(StepBatch, OldLogprobsComeBackAsTheyWereSaved) {
  StepBatch batch(two_groups(), default_loss(LossKind::kGrpo), default_advantage(LossKind::kGrpo));
  EXPECT_FALSE(batch.has_old_logprobs());
  const PackedBatch packed =
      pack(batch.groups(), {{{0, 0, 2, true}, {1, 0, 2, true}}, {.rows = 10}}, EdgeTokens::kInLoss);
  std::vector<double> logprobs;
  for (const PredictionEdge& edge : packed.edges) logprobs.push_back(made_up(edge));
  batch.keep(packed, logprobs, std::vector<double>(logprobs.size()));
  batch.adopt_current_as_old();
  EXPECT_TRUE(batch.has_old_logprobs());
  EXPECT_EQ(batch.sums().ratio, 7.0);  // nothing has moved
  StepBatch restored(two_groups(), default_loss(LossKind::kGrpo),
                     default_advantage(LossKind::kGrpo));
  restored.set_old_logprobs(batch.old_logprobs());
  EXPECT_EQ(restored.old_logprobs(), batch.old_logprobs());
  EXPECT_THROW(restored.set_old_logprobs(std::vector<double>(6)), DataError);
}

}  // namespace
}  // namespace coppice
