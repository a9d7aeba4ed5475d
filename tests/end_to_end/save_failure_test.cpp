// A rank that dies or hangs in the middle of a save: the others end in bounded time and say whom
// they waited for, the old checkpoint is whole and no new one is there, and the same command goes
// on from it to the bits of an undisturbed run. Seen red: the old checkpoint removed before the new
// one is written.
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

// As failure_test has them: the watchdog's seconds, mpirun's, a failing rank's, twice.
constexpr int kWatchdog = 3;
constexpr double kBound = 2 * (kWatchdog + 1 + 3);

struct Fault {
  const char* name;
  const char* variable;
  int victim;
  int call;  // of the victim, within its first save
};

class FaultInsideASave : public TinyRunOfRanks, public testing::WithParamInterface<Fault> {
 protected:
  Outcome run(const std::string& run_dir, int steps, const std::vector<std::string>& fault = {}) {
    const auto arguments =
        train_arguments({"run_dir=" + run_dir, "checkpoint.every_steps=1", "checkpoint.keep_last=1",
                         "threads_per_rank=1", "limits.max_steps=" + std::to_string(steps),
                         "limits.watchdog_seconds=" + std::to_string(kWatchdog),
                         "model.checkpoint=ranks.h5", "parallel.tensor=2"});
    std::vector<RankCommand> ranks(2, {dir_.path().string(), arguments});
    ranks[static_cast<std::size_t>(GetParam().victim)].before = fault;
    return run_command(program_by_rank(ranks), dir_.path().string());
  }
};

TEST_P(FaultInsideASave, EndsAllRanksAndLeavesTheOldCheckpoint) {
  const Fault fault = GetParam();
  ASSERT_EQ(run("undisturbed", 3).status, 0);
  ASSERT_EQ(run("run", 2).status, 0);
  const std::string old = read_file(checkpoint("run", 2));
  const auto outcome = run("run", 3,
                           {"/usr/bin/env", std::string("LD_PRELOAD=") + COPPICE_KILLING_IO,
                            fault.variable + std::string("=") + std::to_string(fault.call)});
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, kBound);
  // The one that waits tells whom it waited for.
  const std::string victim = "rank " + std::to_string(fault.victim) + " (";
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(victim), HasSubstr("has not entered any collective"),
                                 HasSubstr("step 3")));
  if (fault.variable == std::string("COPPICE_STOP_AT")) {
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.reporting_ranks(), testing::ElementsAre(1 - fault.victim));
    EXPECT_THAT(outcome.problems(), Contains(HasSubstr("limits.watchdog_seconds")));
  }
  std::printf("%s: all gone %.1f s after the start\n", fault.name, outcome.seconds);
  EXPECT_EQ(read_file(checkpoint("run", 2)), old);
  EXPECT_FALSE(std::filesystem::exists(checkpoint("run", 3)));
  EXPECT_EQ(coppice({"inspect", checkpoint("run", 2), "--verify"}).status, 0);
  const auto again = run("run", 3);
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(checkpoint_values(checkpoint("run", 3), "/") ==
              checkpoint_values(checkpoint("undisturbed", 3), "/"));
  EXPECT_THAT(files_below(dir_ / "run/checkpoints"), testing::ElementsAre("step_00000003.h5"));
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultInsideASave,
                         testing::Values(Fault{"RankZeroStops", "COPPICE_STOP_AT", 0, 2},
                                         Fault{"RankOneStops", "COPPICE_STOP_AT", 1, 2},
                                         Fault{"RankOneIsKilled", "COPPICE_KILL_AT", 1, 2}),
                         [](const auto& fault) { return std::string(fault.param.name); });

}  // namespace
}  // namespace coppice::test
