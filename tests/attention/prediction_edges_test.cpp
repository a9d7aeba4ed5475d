#include "attention/prediction_edges.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/support.hpp"

namespace coppice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SegmentTargets response(std::int32_t group, std::int32_t index,
                        std::span<const std::uint8_t> flags = {}) {
  return {.group = group, .response = index, .first_target = 0, .is_target = flags};
}

// Mutation seen: predicting token 0 from the row before it in packed order turns this red.
TEST(PredictionEdges, StartEveryResponseAtTheLastPromptRow) {
  const std::vector<std::int32_t> ids{1, 2, 10, 11, 20, 21, 22};
  const std::vector<SegmentTargets> targets{{}, response(0, 0), response(0, 1)};
  EXPECT_THAT(prediction_edges(test::group(2, {2, 3}), ids, targets),
              ElementsAre(PredictionEdge{1, 10, 0, 0, 0}, PredictionEdge{1, 20, 0, 1, 0},
                          PredictionEdge{2, 11, 0, 0, 1}, PredictionEdge{4, 21, 0, 1, 1},
                          PredictionEdge{5, 22, 0, 1, 2}));
}

TEST(PredictionEdges, StartTheSecondResponseBehindThePromptNotBehindTheFirst) {
  const std::vector<std::int32_t> ids(128, 7);
  const std::vector<SegmentTargets> targets{{}, response(0, 0), response(0, 1)};
  for (const auto& edge : prediction_edges(test::group(64, {32, 32}), ids, targets)) {
    if (edge.offset == 0) {
      EXPECT_EQ(edge.row, 63);
    }
    EXPECT_NE(edge.row, 95);
  }
}

TEST(PredictionEdges, LeaveOutTokensThatAreNoTargetsButKeepTheirOffsets) {
  const std::vector<std::int32_t> ids{5, 10, 11, 12, 13, 14, 15};
  const std::vector<std::uint8_t> flags{1, 1, 0, 0, 1, 1};
  const std::vector<SegmentTargets> targets{{}, response(3, 0, flags)};
  EXPECT_THAT(prediction_edges(test::group(1, {6}), ids, targets),
              ElementsAre(PredictionEdge{0, 10, 3, 0, 0}, PredictionEdge{1, 11, 3, 0, 1},
                          PredictionEdge{4, 14, 3, 0, 4}, PredictionEdge{5, 15, 3, 0, 5}));
}

TEST(PredictionEdges, AreTheSameTargetsWhenThePromptIsRepeated) {
  // The worked example as two roots: rows 0-3 are 1 2 10 11, rows 4-8 are 1 2 20 21 22.
  const std::vector<std::int32_t> ids{1, 2, 10, 11, 1, 2, 20, 21, 22};
  const std::vector<std::uint8_t> flags{1, 0, 1};
  const std::vector<SegmentTargets> targets{
      {.group = 0, .response = 0, .first_target = 2},
      {.group = 0, .response = 1, .first_target = 2, .is_target = flags}};
  const auto forest = test::forest_of({{4, -1}, {5, -1}});
  EXPECT_THAT(prediction_edges(forest, ids, targets),
              ElementsAre(PredictionEdge{1, 10, 0, 0, 0}, PredictionEdge{2, 11, 0, 0, 1},
                          PredictionEdge{5, 20, 0, 1, 0}, PredictionEdge{7, 22, 0, 1, 2}));
}

TEST(PredictionEdges, FollowDeeperTreesAcrossEmptySegments) {
  // A response of two turns: 1 row below the prompt, an empty segment, then 2 rows.
  const auto forest = test::forest_of({{2, -1}, {1, 0}, {0, 1}, {2, 2}});
  const std::vector<std::int32_t> ids{1, 2, 30, 40, 41};
  const std::vector<SegmentTargets> targets{
      {}, response(0, 0), {}, {.first_target = 0, .first_offset = 1}};
  EXPECT_THAT(prediction_edges(forest, ids, targets),
              ElementsAre(PredictionEdge{1, 30, 0, 0, 0}, PredictionEdge{2, 40, 0, 0, 1},
                          PredictionEdge{3, 41, 0, 0, 2}));
}

TEST(PredictionEdges, MayBeNone) {
  const std::vector<std::int32_t> ids{1, 2};
  EXPECT_THAT(
      prediction_edges(test::group(2, {0}), ids, std::vector<SegmentTargets>{{}, response(0, 0)}),
      IsEmpty());
}

TEST(PredictionEdges, RefuseATargetThatNothingPredicts) {
  const std::vector<std::int32_t> ids{1, 2};
  const auto edges = [&](std::vector<SegmentTargets> targets) {
    return prediction_edges(test::group(0, {2}), ids, targets);
  };
  EXPECT_THROW(edges({{}, response(0, 0)}), ContractError);
  EXPECT_THROW(edges({{}}), ContractError);
  EXPECT_THROW(edges({{}, {.first_target = 3}}), ContractError);
}

}  // namespace
}  // namespace coppice
