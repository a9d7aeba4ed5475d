// Scores on every grid against those of one rank, which has all groups, rows and weights.
#include <gtest/gtest.h>

#include "ranks/grid_runs.hpp"
#include "rl/scorer.hpp"
#include "rl/training_run.hpp"

namespace coppice {
namespace {

using test::GridCase;
using test::GridModel;

std::vector<double> flat(const std::vector<GroupScores>& scores) {
  std::vector<double> values;
  for (const GroupScores& group : scores)
    for (const ResponseScores& response : group) {
      values.insert(values.end(), response.logprobs.begin(), response.logprobs.end());
      values.insert(values.end(), response.entropies.begin(), response.entropies.end());
    }
  return values;
}

// Seen red with figures of one data rank only gathered (the context axis for the replicas).
TEST(ScoreGroups, GivesEveryRankTheScoresOfOneRank) {
  const auto groups = test::tiny_rollouts();
  for (const GridCase& c : test::grid_cases(test::ranks_session().size())) {
    SCOPED_TRACE(test::name_of(c));
    GridModel run(c, DType::kF64, WithGradients::kNo);
    test::TestContext alone(1);
    ProcessGrid one;
    PolicyModel whole(test::config_of(c.tiny), one.parallel(), DType::kF64, alone.memory(),
                      WithGradients::kNo);
    whole.initialize(3);
    for (const BatchingConfig& batching :
         {BatchingConfig{Sharing::kGrouped, 1000}, {Sharing::kAuto, 38}}) {
      ScoreReport report, expected_report;
      const auto scores = flat(
          score_groups(run.context.ctx(), run.grid, *run.model, groups, batching, 0.8, &report));
      const auto expected =
          flat(score_groups(alone.ctx(), whole, groups, batching, 0.8, &expected_report));
      EXPECT_LT(test::relative_difference(scores, expected), 1e-12);
      EXPECT_EQ(report.work.rows, expected_report.work.rows);
      EXPECT_EQ(report.work.visible_pairs, expected_report.work.visible_pairs);
      EXPECT_EQ(report.work.edge_rows, expected_report.work.edge_rows);
      EXPECT_EQ(report.sharing, expected_report.sharing);

      std::vector<double> of_rank_0 = scores;
      run.grid.world().broadcast(run.context.ctx().stream,
                                 host_view(of_rank_0.data(), {std::ssize(of_rank_0)}), 0);
      EXPECT_EQ(scores, of_rank_0) << "in the same bits on every rank";
    }
  }
}

}  // namespace
}  // namespace coppice
