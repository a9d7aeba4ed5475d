// A job whose ranks fail, die or hang: it ends on all ranks, in a bounded time, with a status that
// is not 0 and a line that says which rank, where and why.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "end_to_end/failure_bound.hpp"
#include "end_to_end/tiny_run.hpp"
#include "launch/host.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class Failure : public TinyRun {
 protected:
  Failure() {
    // What rank 1 sees of the world where it is to see another one.
    std::filesystem::create_directories(other_);
    for (const char* name : {"model.h5", "rollouts.jsonl", "run.textproto"})
      std::filesystem::copy_file(dir_ / name, std::filesystem::path(other_) / name);
  }

  // A run on two ranks, the second one in its own directory with its own `--set`.
  Outcome train_apart(const std::vector<std::string>& set, const std::vector<std::string>& set_1,
                      const std::vector<std::string>& before_1 = {}) {
    return run_command(
        program_by_rank({{dir_.path().string(), train_arguments(set)},
                         {other_, train_arguments(set_1.empty() ? set : set_1), before_1}}),
        dir_.path().string());
  }
  std::string host() const { return host_name(); }

  // A long run on `ranks` ranks that has done some steps, and its processes by rank.
  std::map<int, pid_t> begin_long_run(std::unique_ptr<RunningProgram>& program, int ranks,
                                      std::vector<std::string> set) {
    set.insert(set.end(), {"limits.max_steps=0", "data.epochs=1000000"});
    program = std::make_unique<RunningProgram>(train_arguments(set), dir_.path().string(), ranks);
    const auto processes = program->rank_processes(ranks);
    program->wait_for_lines(dir_ / "run/metrics.jsonl", 3);
    return processes;
  }

  std::string other_ = dir_ / "other";
};

TEST_F(Failure, OtherRolloutsOnOneRankAreNamedWithBothHashes) {
  write_file(other_ + "/rollouts.jsonl", random_rollouts({}, 2));
  const auto outcome = train_apart({}, {});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  ASSERT_THAT(outcome.problems(), SizeIs(1)) << outcome.err;
  EXPECT_THAT(outcome.problems()[0],
              testing::MatchesRegex(
                  "the rollouts file rollouts.jsonl on rank 1 .*" + host() +
                  ". is not what it is on rank 0 .*" + host() +
                  ".: hash [0-9a-f]{16} against [0-9a-f]{16} .*Give all ranks the same."));
  EXPECT_LT(outcome.seconds, bound(0));
  EXPECT_THAT(files_below(dir_.path()), Not(Contains("run")));
}

TEST_F(Failure, AnotherModelOnOneRankIsNamed) {
  ASSERT_EQ(run_program({"init", "--hf-config", golden_case("llama_tied") + "/config.json",
                         "--seed", "8", "--out", other_ + "/model.h5"})
                .status,
            0);
  const auto outcome = train_apart({}, {});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_THAT(outcome.problems(), ElementsAre(AllOf(HasSubstr("the model file model.h5 on rank 1"),
                                                    HasSubstr("hash"))));
}

TEST_F(Failure, AnotherConfigOnOneRankIsNamed) {
  const auto outcome = train_apart({"loss.clip_low=0.1"}, {"loss.clip_low=0.2"});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_THAT(outcome.problems(),
              ElementsAre(HasSubstr("the config run.textproto with its --set on "
                                    "rank 1")));
  // A thread count of its own is a rank's business.
  EXPECT_EQ(run_command(
                program_by_rank({{dir_.path().string(), train_arguments({"threads_per_rank=1"})},
                                 {dir_.path().string(), train_arguments({"threads_per_rank=2"})}}))
                .status,
            0);
}

TEST_F(Failure, ABadFileOnOneRankIsThatRanksToTell) {
  write_file(other_ + "/rollouts.jsonl", "junk\n");
  const auto rollouts = train_apart({}, {});
  EXPECT_EQ(rollouts.status, 2) << rollouts.err;
  EXPECT_THAT(rollouts.problems(), ElementsAre(HasSubstr("rollouts.jsonl:1: ")));
  EXPECT_THAT(rollouts.reporting_ranks(), ElementsAre(1));
  EXPECT_THAT(rollouts.err, HasSubstr("[rank 1, " + host() + "]: "));
  EXPECT_LT(rollouts.seconds, bound(0));
  write_file(other_ + "/run.textproto", "junk\n");
  const auto config = train_apart({}, {});
  EXPECT_EQ(config.status, 2) << config.err;
  EXPECT_THAT(config.reporting_ranks(), Each(1));
  EXPECT_THAT(config.problems(), Contains(HasSubstr("run.textproto:1:1: junk")));
  EXPECT_LT(config.seconds, bound(0));
}

// Bad usage, a bad config and a bad file that all ranks meet.
TEST_F(Failure, WhatAllRanksMeetIsToldOnce) {
  const auto usage = run_program({"train", "--colour"}, ".", 3);
  EXPECT_EQ(usage.status, 2);
  EXPECT_THAT(usage.problems(), SizeIs(2)) << usage.err;
  EXPECT_THAT(usage.reporting_ranks(), Each(0));
  const auto config = train_on_ranks(8, {"seed=x", "loss.clip_low=-1"});
  EXPECT_EQ(config.status, 2);
  EXPECT_THAT(config.problems(), SizeIs(2)) << config.err;
  EXPECT_THAT(config.reporting_ranks(), Each(0));
  write_file(dir_ / "rollouts.jsonl", "junk\n");
  const auto rollouts = train_on_ranks(5);
  EXPECT_EQ(rollouts.status, 2);
  EXPECT_THAT(rollouts.problems(), SizeIs(1)) << rollouts.err;
  EXPECT_THAT(rollouts.reporting_ranks(), ElementsAre(0));
  EXPECT_LT(rollouts.seconds, bound(0));
}

TEST_F(Failure, AGridThatTheRanksDoNotFillOrTheModelDoesNotAllowSaysWhatWould) {
  const auto ranks = train_on_ranks(2, {"parallel.tensor=3"});
  EXPECT_EQ(ranks.status, 2);
  EXPECT_THAT(ranks.problems(),
              ElementsAre(AllOf(HasSubstr("--set parallel.tensor=3: "), HasSubstr("2 ranks run"),
                                HasSubstr("tensor x context = 1 or 2"))));
  const auto model = train_on_ranks(2, {"parallel.tensor=2"});
  EXPECT_EQ(model.status, 2);
  EXPECT_THAT(model.problems(),
              ElementsAre(AllOf(HasSubstr("--set parallel.tensor=2: num_attention_heads = 3"),
                                HasSubstr("This model allows 1."))));
}

TEST_F(Failure, AGridThatDoesNotFitIsToldTogetherWithWhatElseIsWrong) {
  write_file(dir_ / "rollouts.jsonl", "junk\n");
  const auto both = ElementsAre(HasSubstr("parallel.tensor=2: num_attention_heads = 3"),
                                HasSubstr("rollouts.jsonl:1: "));
  const auto training = train_on_ranks(2, {"parallel.tensor=2"});
  EXPECT_THAT(training.problems(), both) << training.err;
  auto arguments = train_arguments({"parallel.tensor=2"});
  arguments[0] = "plan";
  const auto plan = coppice(arguments);
  EXPECT_EQ(plan.status, 2);
  EXPECT_THAT(plan.problems(), both) << plan.err;
  const auto score =
      run_program({"score", "--checkpoint", "model.h5", "--rollouts", "rollouts.jsonl", "--out",
                   "scores.jsonl", "--set", "parallel.tensor=2"},
                  dir_.path().string(), 2);
  EXPECT_EQ(score.status, 2);
  EXPECT_THAT(score.problems(), both) << score.err;
  EXPECT_THAT(files_below(dir_.path()), Not(Contains(AnyOf("run", "scores.jsonl"))));
}

// In the middle of a layer, while the other ranks wait for what this one would send next.
TEST_F(Failure, AnExceptionOnOneRankEndsAllWithItsLine) {
  for (const int failing : {1, 0}) {
    std::vector<RankCommand> ranks(
        3, {dir_.path().string(), train_arguments({"parallel.context=3", "threads_per_rank=1",
                                                   "run_dir=" + std::to_string(failing)})});
    ranks[static_cast<std::size_t>(failing)].before = {
        "/usr/bin/env", std::string("LD_PRELOAD=") + COPPICE_FAILING_SGEMM};
    const auto outcome = run_command(program_by_rank(ranks), dir_.path().string());
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_THAT(outcome.reporting_ranks(), ElementsAre(failing)) << outcome.err;
    EXPECT_THAT(outcome.problems(), ElementsAre(AllOf(HasSubstr("dnnl_sgemm failed with status 1"),
                                                      HasSubstr("[in step 1, forward, layer 0]"))));
    EXPECT_THAT(outcome.err, HasSubstr("[rank " + std::to_string(failing) + ", " + host() + "]: "));
    EXPECT_LT(outcome.seconds, bound(0));
    std::printf("rank %d threw: all gone %.1f s after the start\n", failing, outcome.seconds);
  }
}

// The disk takes nothing more from rank 1, in the middle of a run: the save fails there, and all
// end.
TEST_F(Failure, ASaveThatFailsOnOneRankEndsAllAndLeavesTheOldCheckpoint) {
  std::vector<std::string> set = {"threads_per_rank=1", "checkpoint.every_steps=1",
                                  "checkpoint.keep_last=1000000", "limits.max_steps=0",
                                  "data.epochs=1000000"};
  RunningProgram program(program_by_rank({{dir_.path().string(), train_arguments(set)},
                                          {dir_.path().string(),
                                           train_arguments(set),
                                           {"/bin/sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""}}}),
                         dir_.path().string());
  const auto processes = program.rank_processes(2);
  ASSERT_THAT(processes, SizeIs(2));
  program.wait_for_lines(dir_ / "run/metrics.jsonl", 2);
  const rlimit nothing = {0, 0};
  ASSERT_EQ(prlimit(processes.at(1), RLIMIT_FSIZE, &nothing, nullptr), 0);
  const auto outcome = program.wait();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  ASSERT_THAT(outcome.problems(), SizeIs(1)) << outcome.err;
  EXPECT_THAT(outcome.problems()[0], AllOf(HasSubstr("rank 1: "), HasSubstr("step_")));
  for (const auto& [rank, pid] : processes) EXPECT_FALSE(stays_alive(pid)) << rank;
  const auto steps = static_cast<int>(metrics("run").size());
  EXPECT_TRUE(std::filesystem::exists(checkpoint("run", steps)));
  EXPECT_THAT(files_below(dir_ / "run"), Not(Contains(HasSubstr("coppice-part"))));
}

// Seen red: the watchdog off (the job hung). The killed rank is named by mpirun, what the others
// waited for by the first of them.
TEST_F(Failure, AKilledRankEndsAllAndTheOthersSayWhatTheyWaitedFor) {
  for (const int killed : {1, 0}) {
    std::filesystem::remove_all(dir_ / "run");
    std::unique_ptr<RunningProgram> program;
    const auto processes = begin_long_run(program, 3, {"threads_per_rank=1"});
    ASSERT_THAT(processes, SizeIs(3));
    const auto begin = std::chrono::steady_clock::now();
    kill(processes.at(killed), SIGKILL);
    const auto outcome = program->wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_NE(outcome.status, 0);
    EXPECT_LT(took.count(), bound(0));
    for (const auto& [rank, pid] : processes) EXPECT_FALSE(stays_alive(pid)) << rank;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank " + std::to_string(killed)), HasSubstr(host()),
                                   HasSubstr("signal 9")));
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("coppice: notice [rank " + std::to_string(killed == 0 ? 1 : 0) +
                                ", " + host() + "]: asked to stop while waiting in "),
                      HasSubstr(" axis, step "),
                      HasSubstr("rank " + std::to_string(killed) + " (" + host() +
                                ") has not entered any collective")));
    std::printf("rank %d killed: all gone after %.1f s\n", killed, took.count());
  }
}

TEST_F(Failure, AStalledRankEndsAllWithinTheWatchdogsSeconds) {
  constexpr int kWatchdog = 3;
  for (const int stalled : {1, 0}) {
    std::filesystem::remove_all(dir_ / "run");
    std::unique_ptr<RunningProgram> program;
    const auto processes = begin_long_run(program, 3,
                                          {"threads_per_rank=1", "parallel.context=3",
                                           "limits.watchdog_seconds=" + std::to_string(kWatchdog)});
    ASSERT_THAT(processes, SizeIs(3));
    const auto begin = std::chrono::steady_clock::now();
    kill(processes.at(stalled), SIGSTOP);
    const auto outcome = program->wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_GT(took.count(), 0.45 * kWatchdog);
    EXPECT_LT(took.count(), bound(kWatchdog));
    for (const auto& [rank, pid] : processes) EXPECT_FALSE(stays_alive(pid)) << rank;
    ASSERT_THAT(outcome.reporting_ranks(), ElementsAre(Not(stalled))) << outcome.err;
    EXPECT_THAT(outcome.problems()[0],
                AllOf(HasSubstr("_"), HasSubstr(" axis, step "), HasSubstr("has not finished in"),
                      HasSubstr("rank " + std::to_string(stalled) + " (" + host() +
                                ") has not entered any collective"),
                      HasSubstr("limits.watchdog_seconds")));
    EXPECT_THAT(outcome.err, Not(HasSubstr("notice")));
    std::printf("rank %d stalled, watchdog %d s: all gone after %.1f s\n", stalled, kWatchdog,
                took.count());
  }
}

// Before the first step: rank 1 reads a pipe that nobody writes.
TEST_F(Failure, ARankThatHangsWhileItReadsIsNamed) {
  std::filesystem::remove(other_ + "/run.textproto");
  ASSERT_EQ(mkfifo((other_ + "/run.textproto").c_str(), 0600), 0);
  const auto outcome = train_apart({"limits.watchdog_seconds=2"}, {});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_THAT(outcome.reporting_ranks(), ElementsAre(0));
  EXPECT_THAT(
      outcome.problems(),
      ElementsAre(AllOf(HasSubstr("not all ranks have read their input within 2 s: rank 1 ("),
                        HasSubstr("has not entered any collective"))));
  EXPECT_LT(outcome.seconds, bound(2));
}

// One rank alone is told: all finish the step, save and end well.
TEST_F(Failure, ASignalToOneRankStopsAllInOrder) {
  for (const int signaled : {1, 0}) {
    std::filesystem::remove_all(dir_ / "run");
    std::unique_ptr<RunningProgram> program;
    const auto processes = begin_long_run(program, 2, {"threads_per_rank=1"});
    ASSERT_THAT(processes, SizeIs(2));
    kill(processes.at(signaled), SIGTERM);
    const auto outcome = program->wait();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const auto steps = static_cast<int>(metrics("run").size());
    EXPECT_THAT(outcome.out, HasSubstr("stopped at step " + std::to_string(steps)));
    EXPECT_TRUE(std::filesystem::exists(checkpoint("run", steps)));
  }
}

}  // namespace
}  // namespace coppice::test
