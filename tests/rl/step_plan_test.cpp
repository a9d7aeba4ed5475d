// Groups dealt to data ranks: by hand, and what must hold for any groups on any grid.
#include "rl/step_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "rl/example_groups.hpp"

namespace coppice {
namespace {

using test::group_of;
using test::random_groups;
using test::some_flops;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

double rows_alone(const PackedWork& work) { return static_cast<double>(work.rows); }

// `prompt` rows of prompt and one response for each length.
Group sized(std::size_t prompt, const std::vector<std::size_t>& lengths) {
  std::vector<std::vector<std::int32_t>> responses;
  for (const auto length : lengths) responses.emplace_back(length, 1);
  return group_of(std::vector<std::int32_t>(prompt, 2), responses);
}

std::vector<std::int32_t> groups_of(const MicrobatchPlan& plan) {
  std::vector<std::int32_t> groups;
  for (const Microbatch& microbatch : plan.microbatches)
    for (const MicrobatchPart& part : microbatch.parts)
      if (groups.empty() || groups.back() != part.group) groups.push_back(part.group);
  return groups;
}

// 5 to rank 0, 4 to rank 1, the first 3 to rank 1 (7), the other to rank 0 (8).
TEST(DealGroups, LargestFirstToTheLeastLoadedAsWorkedByHand) {
  const std::vector<double> costs = {5, 3, 4, 3};
  EXPECT_THAT(deal_groups(costs, 2), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
  EXPECT_THAT(deal_groups(costs, 1), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(deal_groups(std::vector<double>{}, 2), ElementsAre(IsEmpty(), IsEmpty()));
}

// Who got the last group of the fullest rank had no more than the mean before.
// Seen red with groups dealt to the ranks in turn.
TEST(DealGroups, LeavesNoRankMoreThanTheMeanAndOneGroup) {
  const RandomStream random(11, "costs");
  for (std::uint64_t draw = 0; draw < 40; ++draw) {
    std::vector<double> costs(1 + random.below(30, 100 * draw));
    for (std::size_t i = 0; i < costs.size(); ++i)
      costs[i] = std::pow(10.0, 3 * random.uniform(100 * draw + i + 1));
    const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
    const double largest = *std::max_element(costs.begin(), costs.end());
    for (const int ranks : {1, 2, 3, 8})
      for (const auto& groups : deal_groups(costs, ranks)) {
        double load = 0;
        for (const auto group : groups) load += costs[static_cast<std::size_t>(group)];
        EXPECT_LE(load, (sum / ranks + largest) * (1 + 1e-12));
      }
  }
}

// 10 + 4 x 5 = 30 rows grouped, 4 x 15 = 60 repeated; 1 + 34 = 35 rows either way.
TEST(StepPlan, AGroupCostsItsPrefixOnceWhereItIsPackedOnce) {
  const std::vector<Group> groups = {sized(10, {5, 5, 5, 5}), sized(1, {34}), sized(1, {3})};
  const auto ranks_of = [&](Sharing sharing) {
    const StepPlan plan = plan_step(groups, {sharing, 100}, EdgeTokens::kAll, rows_alone, 2);
    return std::pair(groups_of(plan.ranks[0]), groups_of(plan.ranks[1]));
  };
  const auto grouped = ranks_of(Sharing::kGrouped), repeated = ranks_of(Sharing::kRepeated);
  EXPECT_THAT(grouped.first, ElementsAre(1));
  EXPECT_THAT(grouped.second, ElementsAre(0, 2));
  EXPECT_THAT(repeated.first, ElementsAre(0));
  EXPECT_THAT(repeated.second, ElementsAre(1, 2));
}

// Budget 40: rank 0 runs the group of 40 rows alone; rank 1 gets 20, 10 and 5: one micro-batch.
// Rows of 40 against 35: the mean is 37.5. Made up to multiples of 8: 0 and 5 rows.
TEST(StepPlan, FiguresAsWorkedByHand) {
  const std::vector<Group> groups = {sized(1, {4}), sized(10, {30}), sized(2, {3, 5}),
                                     sized(10, {10})};
  const StepPlan plan = plan_step(groups, {Sharing::kGrouped, 40}, EdgeTokens::kAll, rows_alone, 2,
                                  {.row_multiple = 8});
  EXPECT_THAT(groups_of(plan.ranks[0]), ElementsAre(1));
  EXPECT_THAT(groups_of(plan.ranks[1]), ElementsAre(0, 2, 3));
  EXPECT_EQ(plan.microbatches(), 1);
  EXPECT_EQ(plan.work.rows, 75);
  EXPECT_EQ(plan.alignment_rows, 5);
  EXPECT_DOUBLE_EQ(plan.imbalance, 40 / 37.5);
}

// The example of math.md over two context ranks, as worked by hand in packing_test.cpp: 311 and
// 411 of a mean of 361; one alignment row for 3 rows.
TEST(StepPlan, ContextRanksWaitForTheFullestOfEveryMicrobatch) {
  const std::vector<Group> groups = {group_of({1, 2}, {{10, 11}, {20, 21, 22}})};
  const RowPlace rows{.cp_size = 2, .row_multiple = 2, .costs = {100, 1}};
  const StepPlan plan =
      plan_step(groups, {Sharing::kGrouped, 7}, EdgeTokens::kAll, rows_alone, 1, rows);
  EXPECT_EQ(plan.alignment_rows, 1);
  EXPECT_DOUBLE_EQ(plan.imbalance, 411.0 / 361.0);
}

TEST(StepPlan, RanksWithFewerGroupsRunEmptyMicrobatches) {
  const std::vector<Group> groups = {sized(10, {30}), sized(2, {5}), sized(1, {3})};
  const StepPlan plan = plan_step(groups, {Sharing::kGrouped, 40}, EdgeTokens::kAll, rows_alone, 5);
  ASSERT_THAT(plan.ranks, SizeIs(5));
  EXPECT_EQ(plan.microbatches(), 1);
  EXPECT_THAT(groups_of(plan.ranks[4]), IsEmpty());
  for (const MicrobatchPlan& rank : plan.ranks) ASSERT_THAT(rank.microbatches, SizeIs(1));
  EXPECT_TRUE(plan.ranks[4].microbatches[0].empty());
}

// One group of 8 x 30 rows in parts of at most 60, more than all the others together.
TEST(StepPlan, AGiantGroupStaysOnOneRankAndTheOthersKeepItsNumberOfMicrobatches) {
  std::vector<Group> groups(4, sized(5, {5}));
  groups[2] = sized(10, std::vector<std::size_t>(8, 20));
  const StepPlan plan = plan_step(groups, {Sharing::kAuto, 50}, EdgeTokens::kAll, rows_alone, 2);
  EXPECT_THAT(groups_of(plan.ranks[0]), ElementsAre(2));
  EXPECT_THAT(groups_of(plan.ranks[1]), ElementsAre(0, 1, 3));
  EXPECT_EQ(plan.microbatches(), 4);
  EXPECT_EQ(plan.fallbacks, 1);
  ASSERT_THAT(plan.ranks[1].microbatches, SizeIs(4));
  EXPECT_EQ(plan.ranks[1].microbatches[0].work.rows, 30);
  for (const std::size_t i : {1u, 2u, 3u}) EXPECT_TRUE(plan.ranks[1].microbatches[i].empty());
}

TEST(StepPlan, WithoutGroupsNothingRuns) {
  const StepPlan plan = plan_step({}, {}, EdgeTokens::kAll, rows_alone, 3);
  EXPECT_EQ(plan.microbatches(), 0);
  EXPECT_EQ(plan.sharing_name(), "");
  EXPECT_EQ(plan.imbalance, 1.0);
}

class StepPlans : public testing::TestWithParam<std::tuple<Sharing, int, int>> {};

// Seen red with the filling up by empty micro-batches left out, and with a rank's groups taken in
// the order of their cost.
TEST_P(StepPlans, RunEveryGroupOnceInOrderInsideTheBudgetAndCountTheSameOnAnyGrid) {
  const auto [sharing, data_ranks, seed] = GetParam();
  const auto groups = random_groups(13, static_cast<std::uint64_t>(seed));
  const BatchingConfig config{sharing, sharing == Sharing::kGrouped ? 220 : 75};
  const auto one = plan_microbatches(groups, config, EdgeTokens::kInLoss, some_flops);
  const StepPlan plan = plan_step(groups, config, EdgeTokens::kInLoss, some_flops, data_ranks);
  ASSERT_THAT(plan.ranks, SizeIs(static_cast<std::size_t>(data_ranks)));

  PackedWork packed;
  std::set<std::int32_t> seen;
  for (const MicrobatchPlan& rank : plan.ranks) {
    EXPECT_EQ(std::ssize(rank.microbatches), plan.microbatches());
    const auto mine = groups_of(rank);
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    for (const auto group : mine) EXPECT_TRUE(seen.insert(group).second);
    for (const Microbatch& microbatch : rank.microbatches) {
      EXPECT_LE(microbatch.work.rows, config.max_rows_per_microbatch);
      add(packed, work_of(pack(groups, microbatch, EdgeTokens::kInLoss)));
    }
  }
  EXPECT_THAT(seen, SizeIs(groups.size()));
  for (const PackedWork& work : {packed, one.work}) {
    EXPECT_EQ(plan.work.rows, work.rows);
    EXPECT_EQ(plan.work.visible_pairs, work.visible_pairs);
    EXPECT_EQ(plan.work.edge_rows, work.edge_rows);
  }
  EXPECT_EQ(plan.fallbacks, one.fallbacks);
  EXPECT_EQ(plan.sharing_name(), one.sharing_name());
  EXPECT_GE(plan.imbalance, 1.0);
  if (data_ranks > 1) return;
  ASSERT_EQ(plan.microbatches(), std::ssize(one.microbatches));
  for (std::size_t m = 0; m < one.microbatches.size(); ++m)
    EXPECT_EQ(pack(groups, plan.ranks[0].microbatches[m], EdgeTokens::kInLoss).token_ids,
              pack(groups, one.microbatches[m], EdgeTokens::kInLoss).token_ids);
}

// Whether a group shares depends on the group alone: not on which data rank runs it, on its context
// ranks, or on the groups beside it.
TEST(StepPlan, TheChoiceOfAutoIsTheSameOnEveryGrid) {
  const auto groups = random_groups(40, 3);
  const BatchingConfig config{Sharing::kAuto, 90};
  const PackingCost cost(some_flops, {.per_range = 6000});
  std::vector<bool> shares(groups.size());
  const auto parts = part_groups(groups, config, EdgeTokens::kInLoss, cost);
  for (std::size_t g = 0; g < groups.size(); ++g) shares[g] = parts[g].parts.front().part.grouped;
  EXPECT_THAT(shares, testing::Contains(true));
  EXPECT_THAT(shares, testing::Contains(false));
  const StepPlan one = plan_step(groups, config, EdgeTokens::kInLoss, cost);
  EXPECT_EQ(one.sharing_name(), "MIXED");
  for (const int data_ranks : {1, 2, 5})
    for (const int context_ranks : {1, 2}) {
      const RowPlace rows{.cp_size = context_ranks, .row_multiple = 1, .costs = {1000, 4}};
      const StepPlan plan = plan_step(groups, config, EdgeTokens::kInLoss, cost, data_ranks, rows);
      EXPECT_EQ(plan.work.rows, one.work.rows);
      EXPECT_EQ(plan.grouped_parts, one.grouped_parts);
      EXPECT_EQ(plan.repeated_parts, one.repeated_parts);
      EXPECT_EQ(plan.fallbacks, one.fallbacks);
      for (const MicrobatchPlan& rank : plan.ranks)
        for (const Microbatch& microbatch : rank.microbatches)
          for (const MicrobatchPart& part : microbatch.parts)
            if (part.first_response == 0) {
              EXPECT_EQ(part.grouped, shares[static_cast<std::size_t>(part.group)]);
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Random, StepPlans,
                         testing::Combine(testing::Values(Sharing::kGrouped, Sharing::kRepeated,
                                                          Sharing::kAuto),
                                          testing::Values(1, 2, 3, 8), testing::Range(1, 4)));

}  // namespace
}  // namespace coppice
