// Rings by hand: links of 100 bytes/s and 0.25 s within a node of four, of 10 bytes/s and 2 s
// between nodes; sums at half the rate.
#include "launch/cluster_links.hpp"

#include <gtest/gtest.h>

#include "launch/cluster_examples.hpp"

namespace coppice::test {
namespace {

double seconds(const AxisPlace& place, Collective collective, std::int64_t calls,
               std::int64_t bytes) {
  return collective_seconds(round_cluster(), place, collective, calls, bytes);
}

TEST(ClusterAxis, TensorRanksAreNeighboursThenContextThenData) {
  const GridSizes grid{.tensor = 2, .context = 2, .data = 4};
  const auto at = [&](GridAxis axis) { return place_of(axis, grid, 1, 4); };
  EXPECT_EQ(at(GridAxis::kTensor).size, 2);
  EXPECT_EQ(at(GridAxis::kTensor).nodes(), 1);
  EXPECT_EQ(at(GridAxis::kContext).size, 2);
  EXPECT_EQ(at(GridAxis::kContext).nodes(), 1);  // ranks 0 and 2 of four
  EXPECT_EQ(at(GridAxis::kReplicas).size, 8);
  EXPECT_EQ(at(GridAxis::kReplicas).members_of_node, 2);
  EXPECT_EQ(at(GridAxis::kReplicas).nodes(), 4);
  EXPECT_EQ(at(GridAxis::kWorld).size, 16);
  EXPECT_EQ(at(GridAxis::kWorld).nodes(), 4);
  EXPECT_EQ(at(GridAxis::kSharedKeyValue).size, 2);  // two tensor ranks hold the one head
  // A tensor axis that fills two nodes leaves one member of another axis to each.
  EXPECT_EQ(place_of(GridAxis::kContext, {.tensor = 8, .context = 2}, 8, 4).members_of_node, 1);
}

// Mutations seen red: n ranks in place of n - 1; an all-reduce of one pass.
TEST(ClusterCollective, TakesTheTimeOfItsRingWithinANode) {
  const AxisPlace four{.size = 4, .members_of_node = 4};
  // Path: 3 x 0.25 s. A gather brings three shards of 200 bytes; a scatter sends three quarters of
  // 800; a sum does the latter twice.
  EXPECT_DOUBLE_EQ(seconds(four, Collective::kAllGather, 1, 200), 3 * 200 / 100.0 + 0.75);
  EXPECT_DOUBLE_EQ(seconds(four, Collective::kReduceScatter, 1, 800), 600 / 50.0 + 0.75);
  EXPECT_DOUBLE_EQ(seconds(four, Collective::kAllReduce, 1, 800), 2 * (600 / 50.0 + 0.75));
  EXPECT_DOUBLE_EQ(seconds(four, Collective::kAllGather, 5, 200), 6 + 5 * 0.75);
}

TEST(ClusterCollective, TakesNothingOnAnAxisOfOneRankOrWithoutCalls) {
  EXPECT_EQ(seconds({}, Collective::kAllReduce, 3, 800), 0);
  EXPECT_EQ(seconds({.size = 4, .members_of_node = 4}, Collective::kAllReduce, 0, 0), 0);
}

// Two nodes, two members in each: two links of 10 bytes/s side by side; a path over 2 links within
// and 1 between.
TEST(ClusterCollective, IsHeldUpByTheLinksBetweenNodes) {
  const AxisPlace place{.size = 4, .members_of_node = 2};
  EXPECT_DOUBLE_EQ(seconds(place, Collective::kAllGather, 1, 200), 600 / 20.0 + 2 * 0.25 + 2);
  EXPECT_DOUBLE_EQ(seconds(place, Collective::kReduceScatter, 1, 800), 600 / 10.0 + 2.5);
  const AxisPlace alone{.size = 4, .members_of_node = 1};
  EXPECT_DOUBLE_EQ(seconds(alone, Collective::kAllGather, 1, 200), 600 / 10.0 + 3 * 2);
}

TEST(ClusterCollective, IsNeverFasterThanTheLinksWithinANode) {
  ClusterProfile cluster = round_cluster();
  cluster.between_nodes.bandwidth = 1e6;
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, {.size = 4, .members_of_node = 2},
                                      Collective::kAllGather, 1, 200),
                   600 / 100.0 + 2.5);
}

}  // namespace
}  // namespace coppice::test
