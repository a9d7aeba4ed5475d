// Packings worked by hand, and properties of plans over random groups: the budget is strict, every
// token is packed once (grouped) or with its own prompt (repeated), every learning token has one
// edge. Sizes are compared with a mask made pair by pair.
#include "rl/microbatch_planner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/rng.hpp"

namespace coppice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

Group group_of(std::vector<std::int32_t> prompt, std::vector<std::vector<std::int32_t>> responses,
               const std::string& name = "g0") {
  Group group{name, std::move(prompt), {}, 1};
  for (auto& ids : responses) {
    Response response;
    response.loss_mask.assign(ids.size(), 1);
    response.ids = std::move(ids);
    group.responses.push_back(std::move(response));
  }
  return group;
}

// Groups of random sizes, prompts of 1 to 40, responses of 0 to 30 tokens, some of them masked.
std::vector<Group> random_groups(std::size_t count, std::uint64_t seed) {
  const RandomStream random(seed, "groups");
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random.below(bound, draw++); };
  std::vector<Group> groups;
  for (std::size_t g = 0; g < count; ++g) {
    std::vector<std::vector<std::int32_t>> responses(1 + below(6));
    for (auto& ids : responses) ids.assign(below(31), static_cast<std::int32_t>(below(50)));
    groups.push_back(
        group_of(std::vector<std::int32_t>(1 + below(40), 7), responses, fmt::format("g{}", g)));
    for (Response& response : groups.back().responses)
      for (auto& bit : response.loss_mask) bit = below(4) > 0;
  }
  return groups;
}

double flops(const PackedWork& work) {
  return 1000.0 * static_cast<double>(work.rows) + 4.0 * static_cast<double>(work.visible_pairs) +
         500.0 * static_cast<double>(work.edge_rows);
}

// P = [1, 2], R = [10, 11], [20, 21, 22], the example of math.md section 1.
TEST(Pack, GroupedAsWorkedByHand) {
  const std::vector<Group> groups = {group_of({1, 2}, {{10, 11}, {20, 21, 22}})};
  const auto plan = plan_microbatches(groups, {Sharing::kGrouped, 7}, EdgeTokens::kInLoss, flops);
  ASSERT_THAT(plan.microbatches, SizeIs(1));
  const PackedBatch batch = pack(groups, plan.microbatches[0], EdgeTokens::kInLoss);
  EXPECT_THAT(batch.token_ids, ElementsAre(1, 2, 10, 11, 20, 21, 22));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 2, 3, 4));
  EXPECT_THAT(batch.edges,
              ElementsAre(PredictionEdge{1, 10, 0, 0, 0}, PredictionEdge{1, 20, 0, 1, 0},
                          PredictionEdge{2, 11, 0, 0, 1}, PredictionEdge{4, 21, 0, 1, 1},
                          PredictionEdge{5, 22, 0, 1, 2}));
  const PackedWork work = work_of(batch);
  EXPECT_EQ(work.rows, 7);
  EXPECT_EQ(work.visible_pairs, 3 + (2 * 2 + 3) + (3 * 2 + 6));
  EXPECT_EQ(work.edge_rows, 4);
  EXPECT_EQ(plan.sharing_name(), "GROUPED");
  EXPECT_EQ(logical_rows(groups[0]), 9);
}

TEST(Pack, RepeatedAsWorkedByHand) {
  const std::vector<Group> groups = {group_of({1, 2}, {{10, 11}, {20, 21, 22}})};
  const auto plan = plan_microbatches(groups, {Sharing::kRepeated, 9}, EdgeTokens::kInLoss, flops);
  ASSERT_THAT(plan.microbatches, SizeIs(1));
  const PackedBatch batch = pack(groups, plan.microbatches[0], EdgeTokens::kInLoss);
  EXPECT_THAT(batch.token_ids, ElementsAre(1, 2, 10, 11, 1, 2, 20, 21, 22));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4));
  EXPECT_THAT(batch.edges,
              ElementsAre(PredictionEdge{1, 10, 0, 0, 0}, PredictionEdge{2, 11, 0, 0, 1},
                          PredictionEdge{5, 20, 0, 1, 0}, PredictionEdge{6, 21, 0, 1, 1},
                          PredictionEdge{7, 22, 0, 1, 2}));
  EXPECT_EQ(work_of(batch).visible_pairs, 10 + 15);
  EXPECT_EQ(work_of(batch).edge_rows, 5);
  EXPECT_EQ(plan.sharing_name(), "REPEATED");
}

// A token outside the loss keeps its place in the context and has an edge only when scoring.
TEST(Pack, AMaskedTokenIsPackedAndHasNoEdgeInTraining) {
  std::vector<Group> groups = {group_of({1}, {{0, 2, 3}})};  // 0 and 2 might be pad and eos ids
  groups[0].responses[0].loss_mask = {1, 0, 1};
  const Microbatch microbatch{{{0, 0, 1, true}}, 4};
  const PackedBatch train = pack(groups, microbatch, EdgeTokens::kInLoss);
  EXPECT_THAT(train.token_ids, ElementsAre(1, 0, 2, 3));
  EXPECT_THAT(train.edges,
              ElementsAre(PredictionEdge{0, 0, 0, 0, 0}, PredictionEdge{2, 3, 0, 0, 2}));
  EXPECT_THAT(pack(groups, microbatch, EdgeTokens::kAll).edges, SizeIs(3));
}

TEST(Pack, EqualPromptsOfTwoGroupsStayApart) {
  const std::vector<Group> groups = {group_of({1, 2}, {{5}}, "a"), group_of({1, 2}, {{6}}, "b")};
  const auto plan = plan_microbatches(groups, {Sharing::kAuto, 100}, EdgeTokens::kAll, flops);
  ASSERT_THAT(plan.microbatches, SizeIs(1));
  const PackedBatch batch = pack(groups, plan.microbatches[0], EdgeTokens::kAll);
  EXPECT_EQ(batch.rows(), 6);
  EXPECT_THAT(batch.edges,
              ElementsAre(PredictionEdge{1, 5, 0, 0, 0}, PredictionEdge{4, 6, 1, 0, 0}));
}

class PlannerProperties : public testing::TestWithParam<std::tuple<Sharing, int>> {};

TEST_P(PlannerProperties, EveryTokenIsPackedInsideTheBudgetAndEveryLearningTokenHasOneEdge) {
  const auto [sharing, seed] = GetParam();
  const auto groups = random_groups(12, static_cast<std::uint64_t>(seed));
  const std::int64_t budget = sharing == Sharing::kGrouped ? 220 : 75;
  for (const EdgeTokens edges : {EdgeTokens::kInLoss, EdgeTokens::kAll}) {
    const auto plan = plan_microbatches(groups, {sharing, budget}, edges, flops);
    std::map<std::tuple<int, int, int>, int> seen;
    std::int64_t rows = 0;
    for (const Microbatch& microbatch : plan.microbatches) {
      EXPECT_LE(microbatch.rows, budget);
      const PackedBatch batch = pack(groups, microbatch, edges);
      rows += batch.rows();
      std::set<std::int64_t> edge_rows;
      for (const PredictionEdge& edge : batch.edges) {
        ++seen[{edge.group, edge.response, edge.offset}];
        edge_rows.insert(edge.row);
        const auto& response = groups[edge.group].responses[edge.response];
        EXPECT_EQ(edge.target, response.ids[edge.offset]);
      }
      // Pair by pair: a row sees the prompt it shares, and its own tokens up to itself.
      std::int64_t pairs = 0;
      for (const MicrobatchPart& part : microbatch.parts) {
        const std::int64_t prompt = std::ssize(groups[part.group].prompt_ids);
        if (part.grouped)
          for (std::int64_t row = 0; row < prompt; ++row) pairs += row + 1;
        for (int i = part.first_response; i < part.first_response + part.response_count; ++i) {
          const std::int64_t length = std::ssize(groups[part.group].responses[i].ids);
          for (std::int64_t row = part.grouped ? prompt : 0; row < prompt + length; ++row)
            pairs += row + 1;
        }
      }
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
  const auto plan = plan_microbatches(groups, {Sharing::kAuto, 50}, EdgeTokens::kAll, flops);
  ASSERT_THAT(plan.microbatches, SizeIs(2));
  EXPECT_EQ(plan.microbatches[0].rows, 50);
  EXPECT_EQ(plan.microbatches[1].rows, 30);
  EXPECT_EQ(plan.fallbacks, 1);
  EXPECT_EQ(plan.sharing_name(), "GROUPED");
  EXPECT_EQ(plan_microbatches(groups, {Sharing::kAuto, 70}, EdgeTokens::kAll, flops).fallbacks, 0);
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
