// A job on CUDA devices one of whose ranks dies or hangs in mid-step: the others' devices wait for
// it and their hosts for the devices. It ends on all ranks in a bounded time, and says which rank
// and what the others waited for, as a job on CPUs does (failure_test.cpp).
#include <signal.h>

#include "end_to_end/failure_bound.hpp"
#include "end_to_end/program_on_cuda.hpp"
#include "launch/host.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class FailureOnCuda : public ProgramOnCuda {
 protected:
  // A long run of two ranks that has done a step, and its processes by rank.
  std::map<int, pid_t> begin_long_run(std::unique_ptr<RunningProgram>& program, int watchdog) {
    std::filesystem::remove_all(dir_ / "run");
    program = std::make_unique<RunningProgram>(
        train_arguments({"limits.max_steps=0", "data.epochs=1000000", "threads_per_rank=1",
                         "parallel.tensor=2", communicator(2),
                         "limits.watchdog_seconds=" + std::to_string(watchdog)}),
        dir_.path().string(), 2);
    const auto processes = program->rank_processes(2);
    program->wait_for_lines(dir_ / "run/metrics.jsonl", 1);
    return processes;
  }
};

TEST_F(FailureOnCuda, AKilledRankEndsAllAndTheOtherSaysWhatItWaitedFor) {
  for (const int killed : {1, 0}) {
    std::unique_ptr<RunningProgram> program;
    const auto processes = begin_long_run(program, 60);
    ASSERT_THAT(processes, SizeIs(2));
    const auto begin = std::chrono::steady_clock::now();
    kill(processes.at(killed), SIGKILL);
    const auto outcome = program->wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_NE(outcome.status, 0);
    EXPECT_LT(took.count(), bound(0));
    for (const auto& [rank, pid] : processes) EXPECT_FALSE(stays_alive(pid)) << rank;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("rank " + std::to_string(killed)), HasSubstr("signal 9"),
                      HasSubstr("coppice: notice [rank " + std::to_string(1 - killed) + ", " +
                                host_name() + "]: asked to stop while waiting in "),
                      HasSubstr(" axis, step "),
                      HasSubstr("rank " + std::to_string(killed) + " (" + host_name() +
                                ") has not entered any collective")));
    std::printf("rank %d killed: all gone after %.1f s\n", killed, took.count());
  }
}

TEST_F(FailureOnCuda, AStalledRankEndsAllWithinTheWatchdogsSeconds) {
  constexpr int kWatchdog = 4;
  std::unique_ptr<RunningProgram> program;
  const auto processes = begin_long_run(program, kWatchdog);
  ASSERT_THAT(processes, SizeIs(2));
  const auto begin = std::chrono::steady_clock::now();
  kill(processes.at(1), SIGSTOP);
  const auto outcome = program->wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_LT(took.count(), bound(kWatchdog));
  for (const auto& [rank, pid] : processes) EXPECT_FALSE(stays_alive(pid)) << rank;
  ASSERT_THAT(outcome.reporting_ranks(), ElementsAre(0)) << outcome.err;
  EXPECT_THAT(outcome.problems()[0],
              AllOf(HasSubstr(" axis, step "), HasSubstr("has not finished in"),
                    HasSubstr("rank 1 (" + host_name() + ") has not entered any collective"),
                    HasSubstr("limits.watchdog_seconds")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("notice")));
  std::printf("rank 1 stalled, watchdog %d s: all gone after %.1f s\n", kWatchdog, took.count());
}

}  // namespace
}  // namespace coppice::test
