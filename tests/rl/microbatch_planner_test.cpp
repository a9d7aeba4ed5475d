// Properties of plans over random groups: the budget is strict, every token is packed once
// (grouped) or with its own prompt (repeated), every learning token has one edge. Sizes are
// compared with a mask made pair by pair.
#include "rl/microbatch_planner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
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

Group sized(std::int64_t prompt, const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<std::int32_t>> responses;
  for (const auto length : lengths) responses.emplace_back(static_cast<std::size_t>(length), 1);
  return group_of(std::vector<std::int32_t>(static_cast<std::size_t>(prompt), 2), responses);
}

std::string_view chosen(const Group& group, const PackingCost& cost, std::int64_t budget = 100000) {
  return plan_microbatches({&group, 1}, {Sharing::kAuto, budget}, EdgeTokens::kAll, cost)
      .sharing_name();
}

// A row costs 1, a range 3, a row behind a prefix 0.5. Two responses of 2 rows are 1 + 2 x 2 ranges
// shared and 2 alone: the seams cost 3 x 3 + 4 x 0.5 = 11, and a prompt of P rows saves P.
// Of one response: 2 ranges more, and nothing saved. An empty response is a range only alone: a
// prompt with one of 2 rows and one empty costs 1 range more shared, 3 + 2 x 0.5 = 4.
// Seen red with ranges of empty responses counted, and with `<` for `<=`.
TEST(AutoSharing, WeighsSavedWorkAgainstSeamsAsWorkedByHand) {
  const PackingCost cost([](const PackedWork& work) { return static_cast<double>(work.rows); },
                         {.per_range = 3, .per_row = 0.5});
  EXPECT_EQ(chosen(sized(10, {2, 2}), cost), "REPEATED");
  EXPECT_EQ(chosen(sized(11, {2, 2}), cost), "GROUPED");
  EXPECT_EQ(chosen(sized(1000, {2}), cost), "REPEATED");
  EXPECT_EQ(chosen(sized(3, {2, 0}), cost), "REPEATED");
  EXPECT_EQ(chosen(sized(4, {2, 0}), cost), "GROUPED");
}

// Prompt 10, three responses of 20: a budget of 50 holds two; the third is alone, and no grouped
// part. A prompt that is not worth sharing is no fallback, however small the budget.
TEST(AutoSharing, CountsAFallbackOnlyWhereTheBudgetKeepsAGroupFromSharing) {
  const PackingCost cost([](const PackedWork& work) { return static_cast<double>(work.rows); },
                         {.per_range = 1});
  const std::vector<Group> groups = {sized(10, {20, 20, 20}), sized(1, {20, 20, 20})};
  const auto plan = [&](std::size_t group) {
    return plan_microbatches({&groups[group], 1}, {Sharing::kAuto, 50}, EdgeTokens::kAll, cost);
  };
  EXPECT_EQ(plan(0).fallbacks, 1);
  EXPECT_EQ(plan(0).grouped_parts, 1);
  EXPECT_EQ(plan(0).repeated_parts, 1);
  EXPECT_EQ(plan(1).fallbacks, 0);
  EXPECT_EQ(plan(1).sharing_name(), "REPEATED");
}

ModelConfig model_of(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                     std::int64_t heads, std::int64_t kv_heads, std::int64_t vocab_size) {
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"hidden_size", hidden},
                                 {"intermediate_size", intermediate},
                                 {"num_hidden_layers", layers},
                                 {"num_attention_heads", heads},
                                 {"num_key_value_heads", kv_heads},
                                 {"vocab_size", vocab_size},
                                 {"max_position_embeddings", 65536},
                                 {"rms_norm_eps", 1e-5}};
  return ModelConfig::parse(config.dump(), "config.json");
}

// What bench/sharing_bench measured (docs/benchmarks/sharing.md): where one packing is clearly
// faster, it is the one that is taken.
TEST(AutoSharing, TakesWhatWasMeasuredToBeFaster) {
  const ModelConfig tiny = model_of(64, 128, 2, 4, 2, 256);
  const ModelConfig smollm2 = model_of(576, 1536, 30, 9, 3, 49152);
  const auto of = [](const ModelConfig& model, std::int64_t prompt, std::int64_t response,
                     std::size_t group_size) {
    return chosen(sized(prompt, std::vector<std::int64_t>(group_size, response)),
                  packing_cost(model));
  };
  for (const ModelConfig* model : {&tiny, &smollm2}) {
    // One response has nothing to share, whatever its prompt.
    for (const std::int64_t prompt : {1, 16, 64, 512, 8192})
      for (const std::int64_t response : {1, 64, 512})
        EXPECT_EQ(of(*model, prompt, response, 1), "REPEATED") << prompt << " " << response;
    for (const std::int64_t prompt : {64, 512, 8192})
      for (const std::int64_t response : {1, 8, 64})
        for (const std::size_t group_size : {2u, 8u})
          EXPECT_EQ(of(*model, prompt, response, group_size), "GROUPED")
              << prompt << " " << response << " " << group_size;
  }
  EXPECT_EQ(of(tiny, 1, 1, 2), "REPEATED");
  EXPECT_EQ(of(tiny, 1, 512, 8), "REPEATED");
  EXPECT_EQ(of(smollm2, 1, 1, 8), "GROUPED");
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
