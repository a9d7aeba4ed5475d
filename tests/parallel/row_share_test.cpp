// Shares of rows by hand.
#include "parallel/row_share.hpp"

#include <gtest/gtest.h>

namespace coppice {
namespace {

// Mutation seen red: the end rounded up.
TEST(RowShare, EveryRowIsInExactlyOneShare) {
  EXPECT_EQ((RowShare{0, 3}.of(7)), (RowRange{0, 2}));
  EXPECT_EQ((RowShare{1, 3}.of(7)), (RowRange{2, 4}));
  EXPECT_EQ((RowShare{2, 3}.of(7)), (RowRange{4, 7}));
  EXPECT_EQ((RowShare{0, 3}.counts(7)), (std::vector<std::int64_t>{2, 2, 3}));
  // Fewer rows than places: somebody has none.
  EXPECT_EQ((RowShare{0, 3}.counts(2)), (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ((RowShare{0, 3}.counts(0)), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(RowShare{}.of(7), (RowRange{0, 7}));
}

TEST(RowShare, IntersectionsThatDoNotMeetAreEmpty) {
  EXPECT_EQ(intersection({2, 6}, {4, 9}), (RowRange{4, 6}));
  EXPECT_EQ(intersection({2, 4}, {4, 9}).count(), 0);
  EXPECT_EQ(intersection({6, 9}, {1, 3}).count(), 0);
}

// Parts of 2, 3 and 2 rows and one row of padding; another rank speaks for the second.
TEST(RowShare, PrimaryRowsLeaveOutPaddingAndWhatOthersSpeakFor) {
  Parameter parameter;
  const auto part = [](std::int64_t begin, std::int64_t count, bool is_primary) {
    return ParameterPart{.name = "p",
                         .row_begin = begin,
                         .shard = Shard::whole({count, 4}),
                         .is_primary = is_primary};
  };
  parameter.parts = {part(0, 2, true), part(2, 3, false), part(5, 2, true)};
  EXPECT_EQ(primary_rows(parameter, {0, 8}), (std::vector<RowRange>{{0, 2}, {5, 7}}));
  EXPECT_EQ(primary_rows(parameter, {1, 6}), (std::vector<RowRange>{{1, 2}, {5, 6}}));
  EXPECT_EQ(primary_rows(parameter, {2, 5}), (std::vector<RowRange>{}));
  parameter.parts[1].is_primary = true;
  EXPECT_EQ(primary_rows(parameter, {0, 8}), (std::vector<RowRange>{{0, 7}}));
}

}  // namespace
}  // namespace coppice
