// Scores on every grid against those of one rank, which has all groups, rows and weights.
#include <gtest/gtest.h>

#include "ranks/grid_run.hpp"
#include "rl/scorer.hpp"

namespace coppice {
namespace {

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
  const test::RunOptions options{.tiny = {"Qwen2", true, 4, 2, 6}};
  const ModelConfig model = test::config_of(options.tiny);
  test::TinyModel alone(model, DType::kF64, 1, WithGradients::kNo);
  for (const test::GridCase& c : test::grid_cases(model)) {
    SCOPED_TRACE(name_of(c));
    const auto grid = test::make_grid(c, model);
    test::GridRun run(*grid, c, groups, test::tiny_trainer_config(), options, "unused");
    for (const BatchingConfig& batching :
         {BatchingConfig{Sharing::kGrouped, 1000}, {Sharing::kAuto, 38}}) {
      ScoreReport report, expected_report;
      const auto scores =
          flat(score_groups(run.ctx(), *grid, run.model(), groups, batching, 0.8, &report));
      const auto expected =
          flat(score_groups(alone.ctx(), *alone, groups, batching, 0.8, &expected_report));
      EXPECT_LT(test::relative_difference(scores, expected), 1e-12);
      EXPECT_EQ(report.work.rows, expected_report.work.rows);
      EXPECT_EQ(report.work.visible_pairs, expected_report.work.visible_pairs);
      EXPECT_EQ(report.work.edge_rows, expected_report.work.edge_rows);
      EXPECT_EQ(report.sharing, expected_report.sharing);

      std::vector<double> of_rank_0 = scores;
      grid->world().broadcast(run.ctx().stream,
                              host_view(of_rank_0.data(), {std::ssize(of_rank_0)}), 0);
      EXPECT_EQ(scores, of_rank_0) << "in the same bits on every rank";
    }
  }
}

}  // namespace
}  // namespace coppice
