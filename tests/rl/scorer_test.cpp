// Scores of a rollouts file against the naive model, which runs every response alone.
#include "rl/scorer.hpp"

#include <gtest/gtest.h>

#include "rl/training_run.hpp"

namespace coppice {
namespace {

using test::tiny_rollouts;
using test::TinyModel;

class Scorer : public testing::TestWithParam<std::tuple<Sharing, std::int64_t, double>> {};

// f64 bound of math.md section 7. Seen red with positions running on over siblings.
TEST_P(Scorer, EqualsEachResponseAlone) {
  const auto [sharing, budget, temperature] = GetParam();
  TinyModel model(test::config_of({"Qwen2", true}), DType::kF64, 1, WithGradients::kNo);
  auto groups = tiny_rollouts();
  ScoreReport report;
  const auto scores =
      score_groups(model.ctx(), *model, groups, {sharing, budget}, temperature, &report);
  const auto naive = model.naive();
  std::vector<double> logprobs, entropies, expected_logprobs, expected_entropies;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      std::vector<std::int32_t> tokens = groups[g].prompt_ids;
      const auto& ids = groups[g].responses[r].ids;
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      const auto alone = naive.score(tokens, temperature);
      ASSERT_EQ(scores[g][r].logprobs.size(), ids.size());
      for (std::size_t t = 0; t < ids.size(); ++t) {
        const std::size_t row = groups[g].prompt_ids.size() - 1 + t;
        logprobs.push_back(scores[g][r].logprobs[t]);
        entropies.push_back(scores[g][r].entropies[t]);
        expected_logprobs.push_back(alone.logprobs[row]);
        expected_entropies.push_back(alone.entropies[row]);
      }
    }
  EXPECT_GT(logprobs.size(), 40u);
  EXPECT_LT(test::relative_difference(logprobs, expected_logprobs), 1e-12);
  EXPECT_LT(test::relative_difference(entropies, expected_entropies), 1e-12);
  // AUTO shares where that pays: not the prompt of one token, nor in a group of one response.
  EXPECT_EQ(report.sharing, sharing == Sharing::kRepeated ? "REPEATED"
                            : sharing == Sharing::kAuto   ? "MIXED"
                                                          : "GROUPED");
  EXPECT_EQ(report.work.rows == report.logical_rows, sharing == Sharing::kRepeated);
}

INSTANTIATE_TEST_SUITE_P(Packings, Scorer,
                         testing::Values(std::tuple(Sharing::kGrouped, 1000, 1.0),
                                         std::tuple(Sharing::kGrouped, 50, 0.7),
                                         std::tuple(Sharing::kRepeated, 60, 1.0),
                                         std::tuple(Sharing::kAuto, 38, 1.3)));

TEST(ScorerRefusals, AGroupBeyondTheBudgetIsRefusedBeforeAnythingRuns) {
  TinyModel model(test::config_of({"Llama", true}), DType::kF32, 1, WithGradients::kNo);
  EXPECT_THROW(score_groups(model.ctx(), *model, tiny_rollouts(), {Sharing::kGrouped, 20}, 1.0),
               ConfigError);
}

}  // namespace
}  // namespace coppice
