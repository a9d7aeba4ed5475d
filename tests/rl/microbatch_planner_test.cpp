// Properties of plans over random groups: the budget is strict, every token is packed once
// (grouped) or with its own prompt (repeated), every learning token has one edge. Sizes are
// compared with a mask made pair by pair.
#include "rl/microbatch_planner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "rl/example_groups.hpp"

namespace coppice {
namespace {

using test::group_of;
using test::random_groups;
using test::some_flops;
using testing::HasSubstr;
using testing::SizeIs;

class PlannerProperties : public testing::TestWithParam<std::tuple<Sharing, int>> {};

TEST_P(PlannerProperties, EveryTokenIsPackedInsideTheBudgetAndEveryLearningTokenHasOneEdge) {
  const auto [sharing, seed] = GetParam();
  const auto groups = random_groups(12, static_cast<std::uint64_t>(seed));
  const std::int64_t budget = sharing == Sharing::kGrouped ? 220 : 75;
  for (const EdgeTokens edges : {EdgeTokens::kInLoss, EdgeTokens::kAll}) {
    const auto plan = plan_microbatches(groups, {sharing, budget}, edges, some_flops);
    std::map<std::tuple<int, int, int>, int> seen;
    std::int64_t rows = 0;
    for (const Microbatch& microbatch : plan.microbatches) {
      EXPECT_LE(microbatch.work.rows, budget);
      const PackedBatch batch = pack(groups, microbatch, edges);
      rows += batch.rows();
      std::set<std::int64_t> edge_rows;
      for (const PredictionEdge& edge : batch.edges) {
        ++seen[{edge.group, edge.response, edge.offset}];
        edge_rows.insert(edge.row);
        const auto& response = groups[edge.group].responses[edge.response];
        EXPECT_EQ(edge.target, response.ids[edge.offset]);
      }
      // Pair by pair: a row sees what its own or an ancestor segment holds up to it.
      std::int64_t pairs = 0;
      const PrefixForest forest = forest_of(groups, microbatch);
      const auto segments = forest.segments();
      for (std::size_t s = 0; s < segments.size(); ++s)
        for (std::int64_t row = segments[s].begin; row < segments[s].end(); ++row)
          for (std::int32_t a = static_cast<std::int32_t>(s); a >= 0; a = segments[a].parent)
            for (std::int64_t key = segments[a].begin; key < segments[a].end(); ++key)
              pairs += key <= row;
      EXPECT_EQ(work_of(batch).visible_pairs, pairs);
      EXPECT_EQ(work_of(batch).edge_rows, std::ssize(edge_rows));
    }
    std::int64_t expected_rows = 0, expected_edges = 0;
    for (const Group& group : groups) {
      expected_rows += sharing == Sharing::kGrouped ? std::ssize(group.prompt_ids) : 0;
      for (const Response& response : group.responses) {
        expected_rows += std::ssize(response.ids) +
                         (sharing == Sharing::kRepeated ? std::ssize(group.prompt_ids) : 0);
        expected_edges +=
            edges == EdgeTokens::kAll ? std::ssize(response.ids) : response.loss_tokens();
      }
    }
    if (sharing != Sharing::kAuto) {
      EXPECT_EQ(rows, expected_rows);
    }
    EXPECT_EQ(std::ssize(seen), expected_edges);
    for (const auto& [key, count] : seen) EXPECT_EQ(count, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Random, PlannerProperties,
                         testing::Combine(testing::Values(Sharing::kGrouped, Sharing::kRepeated,
                                                          Sharing::kAuto),
                                          testing::Range(1, 6)));

// Prompt 10, responses of 20, 20, 20: a budget of 50 holds two responses, then one.
TEST(Planner, AutoCutsAGroupThatDoesNotFitIntoGroupedPartsAndCountsThat) {
  const std::vector<std::int32_t> ids(20, 1);
  const std::vector<Group> groups = {group_of(std::vector<std::int32_t>(10, 2), {ids, ids, ids})};
  const auto plan = plan_microbatches(groups, {Sharing::kAuto, 50}, EdgeTokens::kAll, some_flops);
  ASSERT_THAT(plan.microbatches, SizeIs(2));
  EXPECT_EQ(plan.microbatches[0].work.rows, 50);
  EXPECT_EQ(plan.microbatches[1].work.rows, 30);
  EXPECT_EQ(plan.fallbacks, 1);
  EXPECT_EQ(plan.sharing_name(), "GROUPED");
  EXPECT_EQ(plan_microbatches(groups, {Sharing::kAuto, 70}, EdgeTokens::kAll, some_flops).fallbacks,
            0);
}

TEST(Planner, AutoTakesTheRepeatedFormWhereItCostsLess) {
  const std::vector<Group> groups = {group_of({1, 2}, {{3}, {4}}, "a"), group_of({1}, {{3}}, "b")};
  const auto likes_pairs = [](const PackedWork& w) { return -static_cast<double>(w.rows); };
  const auto plan = plan_microbatches(groups, {Sharing::kAuto, 50}, EdgeTokens::kAll, likes_pairs);
  EXPECT_EQ(plan.repeated_parts, 2);
  EXPECT_EQ(plan.grouped_parts, 1);  // of one response, both forms are the same
  EXPECT_EQ(plan.sharing_name(), "MIXED");
}

std::vector<std::string> problems_of(const std::vector<Group>& groups, BatchingConfig config) {
  try {
    check_row_budget(groups, config);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

// Seen red with `<` for `<=` in the budget.
TEST(RowBudget, IsStrictAndAFullOneFits) {
  const std::vector<Group> groups = {group_of({1, 2}, {{10, 11}, {20, 21, 22}})};
  EXPECT_THAT(problems_of(groups, {Sharing::kGrouped, 7}), SizeIs(0));
  EXPECT_THAT(problems_of(groups, {Sharing::kGrouped, 6}), SizeIs(1));
  EXPECT_THAT(problems_of(groups, {Sharing::kRepeated, 5}), SizeIs(0));
  EXPECT_THAT(problems_of(groups, {Sharing::kRepeated, 4}), SizeIs(1));
  EXPECT_THAT(problems_of(groups, {Sharing::kAuto, 5}), SizeIs(0));
}

TEST(RowBudget, NamesEveryGroupThatCannotFitItsSizeAndWhatWouldFit) {
  const std::vector<Group> groups = {group_of({1, 2}, {{10, 11}, {20, 21, 22}}, "a"),
                                     group_of({1}, {{1}}, "b"),
                                     group_of({1, 2, 3}, {{1, 2, 3, 4, 5, 6}}, "c")};
  const auto grouped = problems_of(groups, {Sharing::kGrouped, 6});
  ASSERT_THAT(grouped, SizeIs(2));
  EXPECT_THAT(grouped[0], HasSubstr("group \"a\" (line 1) has 7 rows, 2 of its prompt and 5 of its "
                                    "2 responses (GROUPED never splits a group). Set it to 9"));
  EXPECT_THAT(grouped[1], HasSubstr("group \"c\""));
  const auto repeated = problems_of(groups, {Sharing::kAuto, 6});
  ASSERT_THAT(repeated, SizeIs(1));
  EXPECT_THAT(repeated[0], HasSubstr("group \"c\" (line 1) has 9 rows with its prompt of 3"));
}

}  // namespace
}  // namespace coppice
