// The order in which recorded groups reach the trainer.
#include "rl/group_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace coppice {
namespace {

using testing::ElementsAre;

std::vector<Group> groups_of(int count) {
  std::vector<Group> groups;
  for (int i = 0; i < count; ++i) groups.push_back({std::to_string(i), {1}, {}, i + 1});
  return groups;
}

std::vector<std::string> names(const std::vector<Group>& groups) {
  std::vector<std::string> result;
  for (const Group& group : groups) result.push_back(group.name);
  return result;
}

TEST(RolloutsSource, GivesFileOrderKeepsTheLastSmallerStepAndGoesOnWithTheNextEpoch) {
  RolloutsSource source(groups_of(5), 2, false, 1);
  EXPECT_EQ(source.batches(2), 6);
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_THAT(names(source.take(2)), ElementsAre("0", "1"));
    EXPECT_THAT(names(source.take(2)), ElementsAre("2", "3"));
    EXPECT_THAT(names(source.take(2)), ElementsAre("4"));
  }
  EXPECT_TRUE(source.take(2).empty());
  EXPECT_TRUE(source.take(2).empty());
}

// Seen red: groups + count - 1 in the rounding up, and a plain product, which both overflow.
TEST(RolloutsSource, CountsBatchesWhateverTheNumbers) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(RolloutsSource(groups_of(5), 2, false, 1).batches(kMost), 2);
  EXPECT_EQ(RolloutsSource(groups_of(5), kMost, false, 1).batches(2), kMost);
  EXPECT_EQ(RolloutsSource(groups_of(5), kMost / 3, false, 1).batches(2), kMost / 3 * 3);
  EXPECT_EQ(saturating_product(kMost, 1), kMost);
  EXPECT_EQ(saturating_product(0, kMost), 0);
}

TEST(RolloutsSource, RefusesAPositionBehindItsGroups) {
  RolloutsSource source(groups_of(2), 2, false, 1);
  source.set_position({1, 2});
  EXPECT_THROW(source.set_position({1, 3}), DataError);
}

TEST(RolloutsSource, ShufflesEachEpochAnewByTheSeedAndGivesEveryGroupOnce) {
  const auto epochs_of = [](std::uint64_t seed) {
    RolloutsSource source(groups_of(20), 2, true, seed);
    return std::pair(names(source.take(20)), names(source.take(20)));
  };
  const auto [first, second] = epochs_of(1);
  EXPECT_NE(first, second);
  EXPECT_NE(first, epochs_of(2).first);
  EXPECT_EQ(epochs_of(1), epochs_of(1));
  EXPECT_THAT(first, testing::UnorderedElementsAreArray(names(groups_of(20))));
  EXPECT_NE(first, names(groups_of(20)));
}

TEST(RolloutsSource, AtAnyPositionARestoredSourceGivesTheSameGroups) {
  RolloutsSource whole(groups_of(7), 3, true, 5);
  for (;;) {
    RolloutsSource restored(groups_of(7), 3, true, 5);
    restored.set_position(whole.position());
    const auto expected = names(whole.take(3));
    EXPECT_EQ(names(restored.take(3)), expected);
    EXPECT_EQ(restored.position(), whole.position());
    if (expected.empty()) break;
  }
}

}  // namespace
}  // namespace coppice
