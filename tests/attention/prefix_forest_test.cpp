#include "attention/prefix_forest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/support.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Mutation seen: positions counted from the packed row turn this red.
TEST(PrefixForest, GivesEveryResponseThePositionsBehindItsPrompt) {
  const PrefixForest forest = test::group(2, {2, 3});
  EXPECT_EQ(forest.rows(), 7);
  EXPECT_THAT(forest.positions(), ElementsAre(0, 1, 2, 3, 2, 3, 4));
  ASSERT_EQ(forest.segments().size(), 3u);
  EXPECT_EQ(forest.segments()[0].end_of_descendants, 7);
  EXPECT_EQ(forest.segments()[1].begin, 2);
  EXPECT_EQ(forest.segments()[1].end_of_descendants, 4);
  EXPECT_EQ(forest.segments()[2].first_position, 2);
}

TEST(PrefixForest, CountsPairsOfTheWorkedExample) {
  // Prompt 2*3/2 = 3; responses 2*2 + 2*3/2 = 7 and 3*2 + 3*4/2 = 12.
  EXPECT_EQ(test::group(2, {2, 3}).visible_pairs(), 22);
}

TEST(PrefixForest, LaysOutDeeperTreesAndSeveralRoots) {
  //  0: 3 rows, 1: 2 below 0, 2: 4 below 1, 3: 1 below 0, 4: a root of 5
  const std::vector<SegmentSpec> specs{{3, -1}, {2, 0}, {4, 1}, {1, 0}, {5, -1}};
  const PrefixForest forest(specs);
  EXPECT_EQ(forest.rows(), 15);
  EXPECT_THAT(forest.positions(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 0, 1, 2, 3, 4));
  EXPECT_EQ(forest.segments()[0].end_of_descendants, 10);
  EXPECT_EQ(forest.segments()[1].end_of_descendants, 9);
  EXPECT_EQ(forest.segments()[4].end_of_descendants, 15);
}

TEST(PrefixForest, CountsPairsLikeABruteForceMask) {
  for (const std::int64_t prefix : {1, 63, 64, 65, 128}) {
    for (const std::int64_t response : {0, 1, 17, 64, 65}) {
      const std::vector<reference::TreeSegment> tree{
          {prefix, -1}, {response, 0}, {response, 0}, {prefix, -1}, {response, 3}, {2, 4}, {3, 4}};
      EXPECT_EQ(test::forest_of(tree).visible_pairs(), test::count(reference::visibility(tree)))
          << prefix << " " << response;
    }
  }
}

TEST(PrefixForest, MayBeEmpty) {
  EXPECT_EQ(PrefixForest().rows(), 0);
  EXPECT_THAT(PrefixForest(std::vector<SegmentSpec>{{0, -1}}).positions(), IsEmpty());
}

TEST(PrefixForest, RefusesWhatIsNotDepthFirst) {
  const auto made = [](std::vector<SegmentSpec> specs) { return PrefixForest(specs); };
  EXPECT_THROW(made({{-1, -1}}), ContractError);
  EXPECT_THROW(made({{1, 0}}), ContractError);                           // its own parent
  EXPECT_THROW(made({{1, -1}, {1, 2}}), ContractError);                  // a later parent
  EXPECT_THROW(made({{1, -1}, {1, 0}, {1, 0}, {1, 1}}), ContractError);  // left already
  EXPECT_THROW(made({{1, -1}, {1, -1}, {1, 0}}), ContractError);         // another tree
}

}  // namespace
}  // namespace coppice
