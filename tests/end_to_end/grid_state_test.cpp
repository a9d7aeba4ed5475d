// What a run on a grid leaves and takes up: scores, fresh weights, checkpoints that go on under
// another grid or the same one, and the bits of two runs. Equality with one rank over many grids is
// grid_test's; checkpoints inside the library are tests/ranks' and tests/checkpoint's.
#include <signal.h>

#include "end_to_end/grid_job.hpp"

namespace coppice::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Eight heads over two shared key-value heads, q/k norms, an odd vocabulary, several micro-batches.
GridRunRow model_row(const std::string& loss = "GRPO2", const std::string& sharing = "GROUPED") {
  return {{{"tensor", "2"},
           {"sharing", sharing},
           {"budget", "small"},
           {"loss", loss},
           {"family", "Qwen3"},
           {"tied", "tied"},
           {"kv", "some"},
           {"vocab", "151"}}};
}

struct Grid {
  int tensor = 1, context = 1, data = 1;
  bool sequence = false;
  int ranks() const { return tensor * context * data; }
  std::vector<std::string> settings() const {
    return {"parallel.tensor=" + std::to_string(tensor),
            "parallel.context=" + std::to_string(context), "parallel.data=" + std::to_string(data),
            std::string("parallel.sequence_parallel=") + (sequence ? "true" : "false")};
  }
};

// Values by group, place in the file and field.
Tensors values_of_scores(const std::vector<json>& groups, const char* field) {
  Tensors all;
  for (const auto& group : groups)
    for (const auto& response : group.at("responses"))
      all[group.at("group").get<std::string>() + "." + std::to_string(all.size())] =
          response.at(field).get<std::vector<double>>();
  return all;
}

std::vector<std::string> score_arguments(const std::string& out, const Grid& grid,
                                         std::vector<std::string> set = {}) {
  std::vector<std::string> arguments = {"score",      "--checkpoint",   "model.h5",
                                        "--rollouts", "rollouts.jsonl", "--out",
                                        out,          "--precision",    "f64"};
  for (const auto& assignment : grid.settings()) set.push_back(assignment);
  for (const auto& assignment : set) arguments.insert(arguments.end(), {"--set", assignment});
  return arguments;
}

// Seen red: logits of the targets not summed over the tensor ranks.
TEST(ScoreOnAGrid, EqualsOneRank) {
  const GridJob job(model_row());
  job.run(score_arguments("one.jsonl", {}));
  const auto one = json_lines(job / "one.jsonl");
  ASSERT_EQ(one.size(), 6);
  const std::vector<std::pair<Grid, std::string>> runs = {{{4, 2, 1, true}, "GROUPED"},
                                                          {{2, 1, 3, false}, "REPEATED"},
                                                          {{8, 1, 1, true}, "REPEATED"},
                                                          {{1, 3, 2, false}, "GROUPED"},
                                                          {{1, 1, 5, false}, "GROUPED"}};
  for (const auto& [grid, sharing] : runs) {
    job.run(score_arguments("grid.jsonl", grid,
                            {"batching.max_rows_per_microbatch=48", "batching.sharing=" + sharing}),
            grid.ranks());
    const auto scores = json_lines(job / "grid.jsonl");
    for (const char* field : {"logprobs", "entropies"}) {
      const Tensors got = values_of_scores(scores, field), want = values_of_scores(one, field);
      EXPECT_LE(distance_over_moved(got, want, zeros_like(want)), 1e-12)
          << field << " on " << testing::PrintToString(grid.settings());
    }
  }
}

TEST(ScoreOnAGrid, FillsTheRolloutsFileWithItsScores) {
  const GridJob job(model_row());
  const Grid grid{2, 2, 1, true};
  job.run(score_arguments("scores.jsonl", grid), grid.ranks());
  auto filling = score_arguments("filled.jsonl", grid);
  filling.insert(filling.end(), {"--fill", "old_logprobs"});
  job.run(filling, grid.ranks());
  EXPECT_EQ(values_of_scores(json_lines(job / "filled.jsonl"), "old_logprobs"),
            values_of_scores(json_lines(job / "scores.jsonl"), "logprobs"));
}

// Seen red: HDF5's times of making in the file.
TEST(InitUnderMpirun, WritesTheBytesThatOneProcessWrites) {
  const GridJob job(model_row());
  job.run({"init", "--hf-config", "config.json", "--seed", "7", "--out", "ranks.h5"}, 4);
  const std::string bytes = read_file(job / "model.h5");
  ASSERT_FALSE(bytes.empty());
  EXPECT_TRUE(read_file(job / "ranks.h5") == bytes);
}

// Step 3 is the first of a batch's two updates: the batch in flight changes its grid too.
// Seen red: one tensor rank taken for the only holder of its key-value head.
TEST(ResumeOnAnotherGrid, GoesOnAsOneRankWouldHave) {
  const GridJob job(model_row());
  job.run(job.train("one", 7));
  int steps = 1;
  for (const Grid& grid : {Grid{2, 2, 1, true}, Grid{1, 1, 2, false}, Grid{}, Grid{8, 1, 1, false}})
    job.run(job.train("grids", steps += (steps == 1 ? 2 : 1), grid.settings()), grid.ranks());
  ASSERT_EQ(steps, 6);
  job.run(job.train("grids", 7));
  const auto got = job.metrics("grids"), want = job.metrics("one");
  ASSERT_EQ(got.size(), 7);
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    expect_same_figures(got[i], want[i]);
  }
  expect_same_state(job.checkpoint("grids", 7), job.checkpoint("one", 7), job.start());
}

// The metrics of a step without what the clock says of it.
json without_seconds(const json& step) {
  json figures = without_times(step);
  if (figures.contains("communication"))
    for (auto& [axis, traffic] : figures["communication"].items()) traffic.erase("seconds");
  return figures;
}

void expect_same_runs(const GridJob& job, const std::string& a, const std::string& b, int steps) {
  expect_same_bits(job.checkpoint(a, steps), job.checkpoint(b, steps));
  const auto one = job.metrics(a), two = job.metrics(b);
  ASSERT_EQ(std::ssize(one), steps);
  ASSERT_EQ(std::ssize(two), steps);
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_EQ(without_seconds(one[i]), without_seconds(two[i]));
}

// Seen red (the job hangs): each rank heeding its own signal alone.
TEST(StopOnOneRank, SavesOnAllAndGoesOnBitForBit) {
  const GridJob job(model_row());
  const Grid grid{2, 1, 2, true};
  auto set = grid.settings();
  set.insert(set.end(), {"data.epochs=1000", "checkpoint.every_steps=0"});
  RunningProgram program(job.train("stopped", 2000, set), job.directory(), grid.ranks());
  program.wait_for_lines(job / "stopped/metrics.jsonl", 2);
  const auto ranks = program.rank_processes(grid.ranks());
  ASSERT_EQ(ranks.size(), 4);
  kill(ranks.at(2), SIGTERM);
  const auto outcome = program.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const int steps = static_cast<int>(job.metrics("stopped").size());
  EXPECT_LT(steps, 2000);
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("stopped at step " + std::to_string(steps)));
  job.run(job.train("stopped", steps + 2, set), grid.ranks());
  job.run(job.train("whole", steps + 2, set), grid.ranks());
  expect_same_runs(job, "stopped", "whole", steps + 2);
}

TEST(TwoRunsOnOneGrid, AreBitIdentical) {
  const GridJob job(model_row("DAPO", "AUTO"));
  const Grid grid{2, 2, 2, true};
  for (const std::string precision : {"F64", "F32"}) {
    auto set = grid.settings();
    set.push_back("numerics.precision=" + precision);
    for (const std::string name : {"a", "b"})
      job.run(job.train(name + precision, 4, set), grid.ranks());
    expect_same_runs(job, "a" + precision, "b" + precision, 4);
  }
}

}  // namespace
}  // namespace coppice::test
