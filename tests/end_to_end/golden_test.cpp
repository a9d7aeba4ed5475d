// The whole program against transformers: every golden case goes through import, score and train as
// a user would run them, grouped and repeated, in double precision. On grids: grid_golden_test.
#include <gmock/gmock.h>

#include "end_to_end/golden_run.hpp"

namespace coppice::test {
namespace {

class Golden : public testing::TestWithParam<GoldenRun> {};

// Seen red with: a response's first token predicted by the row before the prompt's last one;
// positions that run on over the packed rows (grouped).
TEST_P(Golden, ScoresEqualTransformers) { GoldenJob(GetParam()).expect_scores_of_transformers(); }

// Seen red with: AdamW's decay on norms too; the KL gradient's sign; advantages divided by the
// biased standard deviation; no clipping.
TEST_P(Golden, ThreeTrainingStepsEqualTransformers) {
  GoldenJob(GetParam()).expect_training_of_transformers();
}

std::vector<GoldenRun> golden_runs() {
  std::vector<GoldenRun> runs;
  for (const auto& name : golden_case_names())
    for (const char* sharing : {"grouped", "repeated"}) runs.push_back({name, sharing});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(golden_runs()),
                         [](const auto& run) { return run.param.words(); });

}  // namespace
}  // namespace coppice::test
