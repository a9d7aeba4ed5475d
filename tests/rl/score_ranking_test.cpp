// Places worked by hand.
#include "rl/score_ranking.hpp"

#include <gtest/gtest.h>

namespace coppice {
namespace {

ResponseScores of(std::vector<double> logprobs) { return {std::move(logprobs), {}}; }

// Sums -3, -2, 0 (no tokens), -2, -0.5; means -1, -2, none, -1, -0.5.
// Mutations seen red: smallest first; a response without tokens first, as its sum would have it.
TEST(ScoreRanking, OrdersBySumAndByMeanWithTiesInTheirOrderAndEmptyOnesLast) {
  const std::vector<ResponseScores> group = {of({-1, -1, -1}), of({-2}), of({}), of({-1, -1}),
                                             of({-0.5})};
  const auto ranked = rank_candidates(group);
  ASSERT_EQ(ranked.size(), 5u);
  const std::vector<std::int64_t> by_sum = {4, 2, 5, 3, 1}, by_mean = {2, 4, 5, 3, 1};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(ranked[i].response, static_cast<std::int64_t>(i));
    EXPECT_EQ(ranked[i].tokens, std::ssize(group[i].logprobs));
    EXPECT_EQ(ranked[i].by_sum, by_sum[i]) << i;
    EXPECT_EQ(ranked[i].by_mean, by_mean[i]) << i;
  }
  EXPECT_EQ(ranked[0].sum, -3);
  EXPECT_EQ(ranked[0].mean, -1);
}

TEST(ScoreRanking, OfNoResponsesIsEmpty) { EXPECT_TRUE(rank_candidates({}).empty()); }

}  // namespace
}  // namespace coppice
