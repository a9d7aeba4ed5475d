// The golden cases on grids of two to four ranks: the figures of transformers and those of one
// rank. As many tensor ranks as a case's heads and widths allow, then all axes that four ranks
// give.
#include <gmock/gmock.h>

#include <array>

#include "end_to_end/golden_run.hpp"
#include "end_to_end/grid_job.hpp"

namespace coppice::test {
namespace {

// Seen red: each rank dividing by its own count of tokens.
class GoldenOnAGrid : public testing::TestWithParam<GoldenRun> {};

TEST_P(GoldenOnAGrid, EqualsTransformersAndOneRank) {
  const GoldenRun& run = GetParam();
  const GoldenJob one({run.name, run.sharing}), grid(run);
  for (const GoldenJob* job : {&one, &grid}) {
    job->expect_scores_of_transformers();
    job->expect_training_of_transformers();
  }
  for (const char* field : {"logprobs", "entropies"}) {
    const Tensors want = one.scores(field);
    EXPECT_LE(distance_over_moved(grid.scores(field), want, zeros_like(want)), 1e-12) << field;
  }
  const auto got = grid.metrics(), want = one.metrics();
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) expect_same_figures(got[i], want[i]);
  expect_same_state(grid.checkpoint(), one.checkpoint(), one.start());
}

std::vector<GoldenRun> golden_runs() {
  std::vector<GoldenRun> runs;
  const auto names = golden_case_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto config = nlohmann::json::parse(read_file(golden_case(names[i]) + "/config.json"));
    const int heads = config.at("num_attention_heads"), width = config.at("intermediate_size");
    const int tensor = heads % 4 == 0 && width % 4 == 0 ? 4 : heads % 2 == 0 ? 2 : 1;
    std::array<GridSizes, 2> grids = {{{1, 3, 1}, {1, 2, 2}}};
    if (tensor > 1)
      grids = {{{tensor, 1, 1}, i % 2 == 0 ? GridSizes{2, 2, 1} : GridSizes{2, 1, 2}}};
    // In turn by two, so that both ways of sharing meet every axis.
    const bool grouped_first = i / 2 % 2 == 0;
    runs.push_back({names[i], grouped_first ? "grouped" : "repeated", grids[0]});
    runs.push_back({names[i], grouped_first ? "repeated" : "grouped", grids[1]});
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenOnAGrid, testing::ValuesIn(golden_runs()),
                         [](const auto& run) { return run.param.words(); });

}  // namespace
}  // namespace coppice::test
