// Packings worked by hand, and the rows of several ranks put together again: every token of these
// groups has an id of its own, so a pair of rows is a pair of ids, whichever rank shows it.
#include "rl/packing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "rl/example_groups.hpp"
#include "rl/microbatch_planner.hpp"

namespace coppice {
namespace {

using test::group_of;
using test::some_flops;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// P = [1, 2], R = [10, 11], [20, 21, 22], the example of math.md section 1.
std::vector<Group> example() { return {group_of({1, 2}, {{10, 11}, {20, 21, 22}})}; }

Microbatch only_microbatch(const std::vector<Group>& groups, Sharing sharing, EdgeTokens edges) {
  return plan_microbatches(groups, {sharing, 100000}, edges, some_flops).microbatches.at(0);
}

TEST(Pack, GroupedAsWorkedByHand) {
  const auto groups = example();
  const auto plan =
      plan_microbatches(groups, {Sharing::kGrouped, 7}, EdgeTokens::kInLoss, some_flops);
  ASSERT_THAT(plan.microbatches, SizeIs(1));
  const PackedBatch batch = pack(groups, plan.microbatches[0], EdgeTokens::kInLoss);
  EXPECT_THAT(batch.token_ids, ElementsAre(1, 2, 10, 11, 20, 21, 22));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 2, 3, 4));
  EXPECT_THAT(batch.edges,
              ElementsAre(PredictionEdge{1, 10, 0, 0, 0}, PredictionEdge{1, 20, 0, 1, 0},
                          PredictionEdge{2, 11, 0, 0, 1}, PredictionEdge{4, 21, 0, 1, 1},
                          PredictionEdge{5, 22, 0, 1, 2}));
  EXPECT_FALSE(batch.shared.any());
  const PackedWork work = work_of(batch);
  EXPECT_EQ(work.rows, 7);
  EXPECT_EQ(work.visible_pairs, 3 + (2 * 2 + 3) + (3 * 2 + 6));
  EXPECT_EQ(work.edge_rows, 4);
  EXPECT_EQ(plan.sharing_name(), "GROUPED");
  EXPECT_EQ(logical_rows(groups[0]), 9);
}

TEST(Pack, RepeatedAsWorkedByHand) {
  const auto groups = example();
  const auto plan =
      plan_microbatches(groups, {Sharing::kRepeated, 9}, EdgeTokens::kInLoss, some_flops);
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
  const Microbatch microbatch{{{0, 0, 1, true}}, {.rows = 4}};
  const PackedBatch train = pack(groups, microbatch, EdgeTokens::kInLoss);
  EXPECT_THAT(train.token_ids, ElementsAre(1, 0, 2, 3));
  EXPECT_THAT(train.edges,
              ElementsAre(PredictionEdge{0, 0, 0, 0, 0}, PredictionEdge{2, 3, 0, 0, 2}));
  EXPECT_THAT(pack(groups, microbatch, EdgeTokens::kAll).edges, SizeIs(3));
}

TEST(Pack, EqualPromptsOfTwoGroupsStayApart) {
  const std::vector<Group> groups = {group_of({1, 2}, {{5}}, "a"), group_of({1, 2}, {{6}}, "b")};
  const auto microbatch = only_microbatch(groups, Sharing::kAuto, EdgeTokens::kAll);
  const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kAll);
  EXPECT_EQ(batch.rows(), 6);
  EXPECT_THAT(batch.edges,
              ElementsAre(PredictionEdge{1, 5, 0, 0, 0}, PredictionEdge{4, 6, 1, 0, 0}));
}

TEST(Pack, RowsAreMadeUpByRowsThatSeeOnlyThemselvesAndCountNowhere) {
  const auto groups = example();
  const auto microbatch = only_microbatch(groups, Sharing::kGrouped, EdgeTokens::kInLoss);
  const PackedBatch plain = pack(groups, microbatch, EdgeTokens::kInLoss);
  const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kInLoss, {.row_multiple = 4});
  EXPECT_EQ(batch.alignment_rows, 1);
  EXPECT_THAT(batch.token_ids, ElementsAre(1, 2, 10, 11, 20, 21, 22, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 2, 3, 4, 0));
  EXPECT_EQ(batch.edges, plain.edges);
  EXPECT_EQ(work_of(batch).rows, 7);
  EXPECT_EQ(work_of(batch).visible_pairs, 22);
  EXPECT_EQ(batch.plan.visible_pairs(), 23);
  EXPECT_EQ(alignment_rows(0, 4), 0);
  EXPECT_EQ(alignment_rows(8, 4), 0);
  EXPECT_EQ(alignment_rows(5, 4), 3);
}

// Over two ranks, rows at 100, pairs at 1. Pieces of the prefix: row 0 to rank 1, row 1 to rank 0
// (zigzag 0 1 1 0 with two empty pieces). The responses cost 312 and 207: whole they would leave
// 413 on rank 1 against a mean of 361, so the longer is cut (rows 4 and 5 to rank 1, 6 to rank 0),
// then, with 414 on rank 0, the other (row 2 to rank 1, 3 to rank 0).
// Every row but the responses' last is seen by the other rank.
TEST(Pack, TwoContextRanksAsWorkedByHand) {
  const auto groups = example();
  const auto microbatch = only_microbatch(groups, Sharing::kGrouped, EdgeTokens::kInLoss);
  const auto rank = [&](int cp_rank) {
    return pack(groups, microbatch, EdgeTokens::kInLoss,
                {.cp_rank = cp_rank, .cp_size = 2, .row_multiple = 2, .costs = {100, 1}});
  };
  const PackedBatch first = rank(0), second = rank(1);
  EXPECT_THAT(first.token_ids, ElementsAre(2, 11, 22, 0));
  EXPECT_THAT(first.positions, ElementsAre(1, 3, 4, 0));
  EXPECT_EQ(first.alignment_rows, 1);
  EXPECT_THAT(first.edges,
              ElementsAre(PredictionEdge{0, 10, 0, 0, 0}, PredictionEdge{0, 20, 0, 1, 0}));
  EXPECT_THAT(first.shared.rows, ElementsAre(0));
  EXPECT_THAT(first.shared.rank_rows, ElementsAre(1, 4));
  EXPECT_EQ(first.plan.space_rows(0), 4);
  EXPECT_EQ(first.plan.space_rows(1), 5);
  EXPECT_EQ(work_of(first).rows, 3);
  EXPECT_EQ(work_of(first).visible_pairs, 2 + 4 + 5);
  EXPECT_EQ(work_of(first).edge_rows, 1);

  EXPECT_THAT(second.token_ids, ElementsAre(1, 10, 20, 21));
  EXPECT_THAT(second.positions, ElementsAre(0, 2, 2, 3));
  EXPECT_EQ(second.alignment_rows, 0);
  EXPECT_THAT(second.edges,
              ElementsAre(PredictionEdge{1, 11, 0, 0, 1}, PredictionEdge{2, 21, 0, 1, 1},
                          PredictionEdge{3, 22, 0, 1, 2}));
  EXPECT_THAT(second.shared.rows, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(second.shared.rank_rows, first.shared.rank_rows);
  EXPECT_EQ(work_of(second).visible_pairs, 1 + 3 + 3 + 4);
  EXPECT_EQ(work_of(second).edge_rows, 3);
}

TEST(Pack, WholeSequencesOnTwoRanksShareNothing) {
  const std::vector<Group> groups = {group_of({1, 2}, {{5, 6}}, "a"),
                                     group_of({3, 4}, {{7, 8}}, "b")};
  const auto microbatch = only_microbatch(groups, Sharing::kRepeated, EdgeTokens::kAll);
  for (const int cp_rank : {0, 1}) {
    const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kAll,
                                   {.cp_rank = cp_rank, .cp_size = 2, .costs = {100, 1}});
    EXPECT_EQ(batch.rows(), 4);
    EXPECT_FALSE(batch.shared.any());
    EXPECT_THAT(batch.shared.rows, IsEmpty());
    EXPECT_EQ(batch.plan.space_count(), 1);
  }
}

TEST(Pack, ARankWithoutRowsStillKnowsWhatTheOthersShare) {
  const std::vector<Group> groups = {group_of({1}, {{5, 6}})};
  const auto microbatch = only_microbatch(groups, Sharing::kGrouped, EdgeTokens::kAll);
  std::int64_t rows = 0, without_rows = 0;
  std::set<std::vector<std::int64_t>> rank_rows;
  for (int cp_rank = 0; cp_rank < 8; ++cp_rank) {
    const PackedBatch batch =
        pack(groups, microbatch, EdgeTokens::kAll,
             {.cp_rank = cp_rank, .cp_size = 8, .row_multiple = 2, .costs = {100, 1}});
    EXPECT_EQ(batch.rows() % 2, 0);
    without_rows += batch.rows() == 0;
    rows += work_of(batch).rows;
    rank_rows.insert(batch.shared.rank_rows);
  }
  EXPECT_EQ(rows, 3);
  EXPECT_GE(without_rows, 5);
  EXPECT_THAT(rank_rows, SizeIs(1));
  EXPECT_THAT(*rank_rows.begin(), SizeIs(8));
}

TEST(Pack, AMicrobatchWithoutPartsHasNoRows) {
  const PackedBatch batch = pack(example(), {}, EdgeTokens::kAll, {.row_multiple = 4});
  EXPECT_EQ(batch.rows(), 0);
  EXPECT_THAT(batch.edges, IsEmpty());
}

// (token, token) -> how often the first sees the second.
using Pairs = std::map<std::pair<std::int32_t, std::int32_t>, int>;

struct Whole {
  Pairs pairs;
  std::map<std::int32_t, std::int32_t> positions;               // of each token
  std::map<std::tuple<int, int, int>, std::int32_t> predictor;  // of each edge: the token before
};

// From the rules alone: a prompt token sees those before it, a response token its prompt and what
// comes before it in the response.
Whole expected_of(const std::vector<Group>& groups, Sharing sharing, EdgeTokens edges) {
  Whole whole;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& prompt = groups[g].prompt_ids;
    const auto copies =
        sharing == Sharing::kGrouped ? 1 : static_cast<int>(groups[g].responses.size());
    for (std::size_t q = 0; q < prompt.size(); ++q)
      for (std::size_t k = 0; k <= q; ++k) whole.pairs[{prompt[q], prompt[k]}] += copies;
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      const Response& response = groups[g].responses[r];
      std::vector<std::int32_t> path = prompt;
      path.insert(path.end(), response.ids.begin(), response.ids.end());
      for (std::size_t q = 0; q < path.size(); ++q) {
        whole.positions[path[q]] = static_cast<std::int32_t>(q);
        if (q < prompt.size()) continue;
        for (std::size_t k = 0; k <= q; ++k) ++whole.pairs[{path[q], path[k]}];
        const std::size_t t = q - prompt.size();
        if (edges == EdgeTokens::kAll || response.loss_mask[t] == 1)
          whole.predictor[{static_cast<int>(g), static_cast<int>(r), static_cast<int>(t)}] =
              path[q - 1];
      }
    }
  }
  return whole;
}

class PackedRanks : public testing::TestWithParam<std::tuple<int, int>> {};

// Seen red with edges kept by packed row on each rank, with shared rows listed by packed row, and
// with positions left running over the rank's rows.
TEST_P(PackedRanks, TogetherAreTheWholeMicrobatch) {
  const auto [cp_size, seed] = GetParam();
  const auto groups = test::random_groups_of_distinct_tokens(1 + static_cast<std::size_t>(seed) % 4,
                                                             static_cast<std::uint64_t>(seed));
  const std::int64_t multiple = 1 + seed % 3;
  for (const Sharing sharing : {Sharing::kGrouped, Sharing::kRepeated})
    for (const EdgeTokens edges : {EdgeTokens::kInLoss, EdgeTokens::kAll}) {
      const auto microbatch = only_microbatch(groups, sharing, edges);
      std::vector<PackedBatch> ranks;
      std::vector<std::int32_t> gathered;  // tokens, in gathering order
      for (int rank = 0; rank < cp_size; ++rank) {
        ranks.push_back(pack(
            groups, microbatch, edges,
            {.cp_rank = rank, .cp_size = cp_size, .row_multiple = multiple, .costs = {200, 1}}));
        for (const std::int64_t row : ranks.back().shared.rows)
          gathered.push_back(ranks.back().token_ids.at(static_cast<std::size_t>(row)));
      }
      const Whole whole = expected_of(groups, sharing, edges);
      Pairs pairs;
      std::set<std::tuple<int, int, int>> seen_edges;
      PackedWork work;
      std::int64_t alone = 0;
      for (const PackedBatch& batch : ranks) {
        EXPECT_EQ(batch.rows() % multiple, 0);
        EXPECT_LT(batch.alignment_rows, multiple);
        const std::int64_t real = batch.rows() - batch.alignment_rows;
        for (std::int64_t row = 0; row < batch.rows(); ++row) {
          const auto i = static_cast<std::size_t>(row);
          const auto token = batch.token_ids[i];
          EXPECT_EQ(token == 0, row >= real);
          EXPECT_EQ(batch.positions[i], token == 0 ? 0 : whole.positions.at(token));
        }
        for (const KeyRange& range : batch.plan.key_ranges())
          for (const QueryRun& run : range.runs)
            for (std::int64_t q = 0; q < run.length; ++q) {
              const auto keys = run.mask == Mask::kCausal ? q + 1 : range.length;
              for (std::int64_t k = 0; k < keys; ++k) {
                const auto& tokens = range.space == 0 ? batch.token_ids : gathered;
                const auto query = batch.token_ids.at(static_cast<std::size_t>(run.begin + q));
                const auto key = tokens.at(static_cast<std::size_t>(range.begin + k));
                if (query == 0 && key == 0)
                  ++alone;
                else
                  ++pairs[{query, key}];
              }
            }
        alone -= batch.alignment_rows;
        for (const PredictionEdge& edge : batch.edges) {
          const std::tuple key(edge.group, edge.response, edge.offset);
          EXPECT_TRUE(seen_edges.insert(key).second) << "an edge on two ranks";
          EXPECT_EQ(batch.token_ids.at(static_cast<std::size_t>(edge.row)),
                    whole.predictor.at(key));
          EXPECT_EQ(edge.target, groups[static_cast<std::size_t>(edge.group)]
                                     .responses[static_cast<std::size_t>(edge.response)]
                                     .ids[static_cast<std::size_t>(edge.offset)]);
        }
        EXPECT_TRUE(std::is_sorted(batch.edges.begin(), batch.edges.end(),
                                   [](const auto& a, const auto& b) { return a.row < b.row; }));
        add(work, work_of(batch));
      }
      EXPECT_EQ(pairs, whole.pairs);
      EXPECT_EQ(alone, 0);
      EXPECT_EQ(seen_edges.size(), whole.predictor.size());
      EXPECT_EQ(work.rows, microbatch.work.rows);
      EXPECT_EQ(work.visible_pairs, microbatch.work.visible_pairs);
      EXPECT_EQ(work.edge_rows, microbatch.work.edge_rows);
    }
}

INSTANTIATE_TEST_SUITE_P(Random, PackedRanks,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Range(1, 9)));

}  // namespace
}  // namespace coppice
