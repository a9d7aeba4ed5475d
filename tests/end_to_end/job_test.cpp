// Jobs that go well: any number of ranks, started in any way, and commands that one rank does.
#include "end_to_end/tiny_run.hpp"
#include "launch/host.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using JobOfRanks = TinyRun;

TEST_F(JobOfRanks, AnyNumberOfRanksTrainsAndEnds) {
  const auto alone = train({"run_dir=alone", "threads_per_rank=1"});
  ASSERT_EQ(alone.status, 0);
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const std::string run = "run" + std::to_string(ranks);
    const auto outcome = train_on_ranks(ranks, {"run_dir=" + run, "threads_per_rank=1"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "done: 4 steps; " + run + "/checkpoints/step_00000004.h5\n");
    const auto steps = metrics(run), expected = metrics("alone");
    ASSERT_THAT(steps, SizeIs(4));
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(steps[i]["grad_norm"].get<double>(), expected[i]["grad_norm"].get<double>(),
                  1e-4 * expected[i]["grad_norm"].get<double>());
      EXPECT_EQ(steps[i]["rows"], expected[i]["rows"]);
    }
    EXPECT_THAT(read_file(dir_ / (run + "/config.textproto")),
                HasSubstr("data: " + std::to_string(ranks)));
  }
}

// Progress and results are rank 0's alone.
TEST_F(JobOfRanks, OneRankPrintsForAll) {
  const auto outcome = train_on_ranks(3, {"threads_per_rank=1"});
  ASSERT_EQ(outcome.status, 0);
  std::istringstream lines(outcome.err);
  std::vector<std::string> begins;
  for (std::string line; std::getline(lines, line);) begins.push_back(line.substr(0, 11));
  EXPECT_THAT(begins, ElementsAre("step 1 of 4", "step 2 of 4", "step 3 of 4", "step 4 of 4"));
  const auto again = train_on_ranks(2, {"threads_per_rank=1"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, testing::MatchesRegex("run is finished: 4 steps are done.[^\n]*\n"));
}

TEST_F(JobOfRanks, CommandsOfOneRankWorkOnSeveral) {
  const auto all = [&](std::vector<std::string> arguments) {
    const auto outcome = run_program(arguments, dir_.path().string(), 3);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out + outcome.err;
  };
  const std::string config = golden_case("llama_tied") + "/config.json";
  EXPECT_EQ(all({"init", "--hf-config", config, "--seed", "7", "--out", "again.h5"}),
            coppice({"init", "--hf-config", config, "--seed", "7", "--out", "again.h5"}).err);
  EXPECT_TRUE(checkpoint_values(dir_ / "again.h5") == checkpoint_values(dir_ / "model.h5"));
  EXPECT_EQ(all({"--help"}), coppice({"--help"}).out);
  EXPECT_EQ(all({"train", "--help"}), coppice({"train", "--help"}).out);
  EXPECT_EQ(all({"--version"}), coppice({"--version"}).out);
  EXPECT_EQ(all({"inspect", "model.h5"}), coppice({"inspect", "model.h5"}).out);
  EXPECT_EQ(all({"plan", "--config", "run.textproto", "--set", "threads_per_rank=1"}),
            coppice({"plan", "--config", "run.textproto", "--set", "threads_per_rank=1"}).out);
  EXPECT_THAT(all({"export", "--checkpoint", "model.h5", "--out", "hf"}), HasSubstr("exported"));
  EXPECT_THAT(all({"import", "--hf", "hf", "--out", "back.h5"}), HasSubstr("imported"));
  EXPECT_TRUE(checkpoint_values(dir_ / "back.h5") == checkpoint_values(dir_ / "model.h5"));
}

// Open MPI's variables are there for nobody, as nothing else that names a home or a path.
TEST_F(JobOfRanks, OneRankNeedsNeitherMpirunNorAnyVariable) {
  Command bare = program_on_ranks(0, train_arguments({}));
  bare.words.insert(bare.words.begin(), {"/usr/bin/env", "-i"});
  const auto outcome = run_command(bare, dir_.path().string());
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(metrics("run"), SizeIs(4));
}

TEST_F(JobOfRanks, SharesTheMachinesCoresWhereThreadsAreNotGiven) {
  ASSERT_EQ(train_on_ranks(8).status, 0);
  const auto text = read_file(dir_ / "run/config.textproto");
  const auto each = std::max(1, available_cores() / 8);
  EXPECT_THAT(text, HasSubstr("threads_per_rank: " + std::to_string(each) + "\n"));
}

TEST_F(JobOfRanks, ARunDirectoryInUseIsRefusedByRankZeroForAll) {
  RunningProgram first(train_arguments({"limits.max_steps=0", "data.epochs=1000000"}),
                       dir_.path().string(), 2);
  first.wait_for_lines(dir_ / "run/metrics.jsonl", 1);
  const auto second = train_on_ranks(2);
  EXPECT_EQ(second.status, 2) << second.err;
  EXPECT_THAT(second.problems(), ElementsAre(HasSubstr("run_dir: run is in use")));
}

}  // namespace
}  // namespace coppice::test
