#include "attention/attention_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/support.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using SeenMask = std::vector<std::vector<int>>;

/// What a plan of one space shows, from its query ranges.
SeenMask seen_by_queries(const AttentionPlan& plan) {
  SeenMask mask(static_cast<std::size_t>(plan.query_rows()),
                std::vector<int>(static_cast<std::size_t>(plan.space_rows(0)), 0));
  const auto keys = plan.key_ranges();
  for (const QueryRange& range : plan.query_ranges()) {
    for (std::int64_t i = 0; i < range.length; ++i) {
      auto& row = mask[static_cast<std::size_t>(range.begin + i)];
      for (const auto full : range.full) {
        const KeyRange& key = keys[static_cast<std::size_t>(full)];
        for (std::int64_t j = 0; j < key.length; ++j) {
          ++row[static_cast<std::size_t>(key.begin + j)];
        }
      }
      if (range.square == QueryRange::kNoSquare) continue;
      const KeyRange& key = keys[static_cast<std::size_t>(range.square)];
      for (std::int64_t j = 0; j <= i; ++j) ++row[static_cast<std::size_t>(key.begin + j)];
    }
  }
  return mask;
}

/// The same from its key ranges.
SeenMask seen_from_keys(const AttentionPlan& plan) {
  SeenMask mask(static_cast<std::size_t>(plan.query_rows()),
                std::vector<int>(static_cast<std::size_t>(plan.space_rows(0)), 0));
  for (const KeyRange& key : plan.key_ranges()) {
    for (const QueryRun& run : key.runs) {
      for (std::int64_t i = 0; i < run.length; ++i) {
        for (std::int64_t j = 0; j < key.length; ++j) {
          if (run.mask == Mask::kCausal && j > i) continue;
          ++mask[static_cast<std::size_t>(run.begin + i)][static_cast<std::size_t>(key.begin + j)];
        }
      }
    }
  }
  return mask;
}

TEST(AttentionPlan, ListsTheWorkedExample) {
  const AttentionPlan plan(test::group(2, {2, 3}));
  ASSERT_EQ(plan.query_ranges().size(), 3u);
  EXPECT_THAT(plan.query_ranges()[0].full, IsEmpty());
  EXPECT_THAT(plan.query_ranges()[2].full, ElementsAre(0));
  EXPECT_EQ(plan.query_ranges()[2].square, 2);
  ASSERT_EQ(plan.key_ranges().size(), 3u);
  const auto& prompt = plan.key_ranges()[0];
  ASSERT_EQ(prompt.runs.size(), 2u);  // its own square, and one run over both responses
  EXPECT_EQ(prompt.runs[0].mask, Mask::kCausal);
  EXPECT_EQ(prompt.runs[1].begin, 2);
  EXPECT_EQ(prompt.runs[1].length, 5);
  EXPECT_EQ(plan.visible_pairs(), 22);
}

// Mutation seen: responses seen by the first rows of the next.
TEST(AttentionPlan, ShowsExactlyWhatTheRuleShows) {
  for (const std::int64_t prefix : {1, 63, 64, 65, 128}) {
    for (const std::int64_t response : {0, 1, 17, 64, 65}) {
      const std::vector<reference::TreeSegment> tree{
          {prefix, -1}, {response, 0}, {2, 1}, {0, 1}, {3, 1}, {response, 0}, {prefix, -1}};
      const auto mask = reference::visibility(tree);
      const AttentionPlan plan(test::forest_of(tree));
      EXPECT_EQ(seen_by_queries(plan), mask) << prefix << " " << response;
      EXPECT_EQ(seen_from_keys(plan), mask) << prefix << " " << response;
      EXPECT_EQ(plan.visible_pairs(), test::count(mask));
    }
  }
}

TEST(AttentionPlan, ShowsRandomForestsAsTheRuleDoes) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto tree = test::random_tree(seed, 9, 12);
    const auto mask = reference::visibility(tree);
    const AttentionPlan plan(test::forest_of(tree));
    EXPECT_EQ(seen_by_queries(plan), mask) << seed;
    EXPECT_EQ(seen_from_keys(plan), mask) << seed;
    EXPECT_EQ(plan.visible_pairs(), test::count(mask)) << seed;
  }
}

TEST(AttentionPlan, CutsRangesWhereRectanglesBeginAndEnd) {
  // Rows 2-3 are new; keys 0-9 of space 0 were kept, of which row 2 sees 0-3 and row 3 sees 0-9.
  const std::vector<std::int64_t> rows{10, 4};
  const std::vector<PlanRectangle> rectangles{{2, 2, 0, 0, 4, Mask::kFull},
                                              {3, 1, 0, 4, 6, Mask::kFull},
                                              {2, 1, 1, 2, 1, Mask::kCausal},
                                              {3, 1, 1, 3, 1, Mask::kCausal}};
  const AttentionPlan plan(4, rows, rectangles);
  ASSERT_EQ(plan.query_ranges().size(), 3u);  // 0-1 sees nothing, 2, 3
  EXPECT_THAT(plan.query_ranges()[0].full, IsEmpty());
  EXPECT_EQ(plan.query_ranges()[0].square, QueryRange::kNoSquare);
  EXPECT_THAT(plan.query_ranges()[2].full, ElementsAre(0, 1));
  ASSERT_EQ(plan.key_ranges().size(), 5u);  // 0-3, 4-9; 0-1, 2, 3
  EXPECT_THAT(plan.key_ranges()[2].runs, IsEmpty());
  EXPECT_EQ(plan.key_ranges()[4].space, 1);
  EXPECT_EQ(plan.visible_pairs(), 8 + 6 + 1 + 1);
}

TEST(AttentionPlan, MayBeEmpty) {
  EXPECT_EQ(AttentionPlan(PrefixForest()).query_rows(), 0);
  EXPECT_THAT(AttentionPlan(PrefixForest()).query_ranges(), IsEmpty());
  EXPECT_EQ(AttentionPlan().space_count(), 0);
}

TEST(AttentionPlan, RefusesRectanglesThatDoNotFit) {
  const auto made = [](std::vector<PlanRectangle> rectangles) {
    return AttentionPlan(4, std::vector<std::int64_t>{6}, rectangles);
  };
  EXPECT_NO_THROW(made({{0, 4, 0, 0, 6, Mask::kFull}}));
  EXPECT_THROW(made({{0, 5, 0, 0, 6, Mask::kFull}}), ContractError);
  EXPECT_THROW(made({{0, 4, 0, 1, 6, Mask::kFull}}), ContractError);
  EXPECT_THROW(made({{0, 4, 1, 0, 6, Mask::kFull}}), ContractError);
  EXPECT_THROW(made({{0, 4, 0, 0, 6, Mask::kCausal}}), ContractError);
  // Seen twice.
  EXPECT_THROW(made({{0, 4, 0, 0, 6, Mask::kFull}, {1, 1, 0, 2, 1, Mask::kFull}}), ContractError);
  EXPECT_THROW(made({{0, 2, 0, 0, 2, Mask::kCausal}, {0, 2, 0, 0, 2, Mask::kFull}}), ContractError);
  EXPECT_THROW(made({{0, 2, 0, 0, 2, Mask::kCausal}, {0, 2, 0, 2, 2, Mask::kCausal}}),
               ContractError);
  // A full rectangle that ends inside a square.
  EXPECT_THROW(made({{0, 4, 0, 0, 4, Mask::kCausal}, {0, 2, 0, 4, 2, Mask::kFull}}), ContractError);
}

}  // namespace
}  // namespace coppice
