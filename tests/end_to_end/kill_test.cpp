// A run that is killed again and again, half of the times inside a save, and started again with the
// same command, ends with the very bits of a run that nobody disturbed. COPPICE_KILLS sets how many
// kills (tests/many_kills runs a hundred and more); the last line printed counts them.
//
// Seen red: older checkpoints removed before the new one is written; the new name given before the
// file is complete; the place in the data not restored.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/rng.hpp"
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

int wanted_kills(int usual) {
  const char* given = std::getenv("COPPICE_KILLS");
  return given == nullptr ? usual : std::atoi(given);
}

// How many ranks under mpirun; 0: no mpirun.
class Killed : public TinyRunOfRanks, public testing::WithParamInterface<int> {
 protected:
  static constexpr int kSteps = 6;

  Command command(const std::string& run_dir, int victim,
                  const std::vector<std::string>& environment) const {
    const auto arguments =
        train_arguments({"run_dir=" + run_dir, "checkpoint.every_steps=1", "checkpoint.keep_last=1",
                         "loss.updates_per_batch=2", "threads_per_rank=1",
                         "limits.max_steps=" + std::to_string(kSteps), "model.checkpoint=ranks.h5",
                         "parallel.tensor=" + std::to_string(std::max(1, GetParam()))});
    std::vector<std::string> before{"/usr/bin/env"};
    before.insert(before.end(), environment.begin(), environment.end());
    if (GetParam() > 0) {
      std::vector<RankCommand> ranks;
      for (int rank = 0; rank < GetParam(); ++rank) {
        ranks.push_back({dir_.path().string(), arguments,
                         rank == victim ? before : std::vector<std::string>{}});
      }
      return program_by_rank(ranks);
    }
    Command alone = program_on_ranks(0, arguments);
    alone.words.insert(alone.words.begin(), before.begin(), before.end());
    return alone;
  }
  Outcome run(const std::string& run_dir, int victim = 0,
              const std::vector<std::string>& environment = {}) const {
    return run_command(command(run_dir, victim, environment), dir_.path().string());
  }
  // Calls of one rank that change a checkpoint, in an undisturbed run.
  int calls_of(int rank) const {
    const std::string file = dir_ / "calls";
    const std::string run_dir = "counted" + std::to_string(rank);
    const auto outcome =
        run(run_dir, rank,
            {std::string("LD_PRELOAD=") + COPPICE_KILLING_IO, "COPPICE_COUNT_FILE=" + file});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return std::atoi(read_file(file).c_str());
  }
  // A step's line is written once its checkpoint is safe, and with one checkpoint kept an older one
  // goes only then.
  void expect_nothing_lost(const std::string& run_dir) const {
    const auto steps = std::filesystem::exists(dir_ / (run_dir + "/metrics.jsonl"))
                           ? static_cast<int>(metrics(run_dir).size())
                           : 0;
    if (steps == 0) return;
    const bool next = std::filesystem::exists(checkpoint(run_dir, steps + 1));
    const auto outcome =
        coppice({"inspect", checkpoint(run_dir, next ? steps + 1 : steps), "--verify"});
    EXPECT_EQ(outcome.status, 0) << steps << " steps in the metrics; " << outcome.err;
  }
  void expect_undisturbed(const std::string& run_dir) const {
    const auto one = checkpoint_values(checkpoint("undisturbed", kSteps), "/");
    EXPECT_TRUE(checkpoint_values(checkpoint(run_dir, kSteps), "/") == one);
    const auto steps = metrics(run_dir), expected = metrics("undisturbed");
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(without_times(steps[i]), without_times(expected[i]));
    }
  }
};

TEST_P(Killed, EndsWithTheBitsOfAnUndisturbedRun) {
  const auto whole = run("undisturbed");
  ASSERT_EQ(whole.status, 0) << whole.err;
  const int ranks = std::max(1, GetParam()), wanted = wanted_kills(GetParam() > 0 ? 4 : 10);
  std::vector<int> calls;
  for (int rank = 0; rank < ranks; ++rank) calls.push_back(calls_of(rank));
  for (const int count : calls)
    ASSERT_GT(count, 2 * kSteps) << "every save writes, syncs and renames";

  const RandomStream random(1, "kills");
  int kills = 0, within_saves = 0, rounds = 0, tries = 0;
  std::uint64_t draw = 0;
  const auto below = [&](int bound) {
    return static_cast<int>(random.below(static_cast<std::uint64_t>(bound), draw++));
  };
  for (std::string run_dir = "killed0"; kills < wanted;) {
    const int victim = below(ranks);
    Outcome outcome;
    const bool within_a_save = tries++ % 2 == 0;
    if (within_a_save) {
      const int at = 1 + below(calls[static_cast<std::size_t>(victim)]);
      outcome = run(run_dir, victim,
                    {std::string("LD_PRELOAD=") + COPPICE_KILLING_IO,
                     "COPPICE_KILL_AT=" + std::to_string(at)});
    } else {
      RunningProgram running(command(run_dir, victim, {}), dir_.path().string());
      std::this_thread::sleep_for(
          std::chrono::duration<double>(whole.seconds * (0.1 + 0.01 * below(90))));
      if (GetParam() == 0) {
        running.send(SIGKILL);
      } else {
        // Not mpirun, whose ranks would go on for a while and meet the next run.
        const auto processes = running.rank_processes(ranks);
        if (processes.count(victim) != 0) kill(processes.at(victim), SIGKILL);
      }
      outcome = running.wait();
    }
    if (outcome.status != 0) {
      ++kills;
      within_saves += within_a_save;
      expect_nothing_lost(run_dir);
      continue;
    }
    expect_undisturbed(run_dir);  // it came to its end this time
    run_dir = "killed" + std::to_string(++rounds);
  }
  const std::string last = "killed" + std::to_string(rounds);
  const auto outcome = run(last);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_undisturbed(last);
  std::printf("%d kills, %d of them inside a save, over %d runs that came to their end\n", kills,
              within_saves, rounds + 1);
  EXPECT_GE(within_saves, wanted >= 100 ? 3 * wanted / 10 : wanted / 5);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Killed, testing::Values(0, 2), [](const auto& ranks) {
  return ranks.param == 0 ? std::string("Alone") : std::to_string(ranks.param) + "Ranks";
});

}  // namespace
}  // namespace coppice::test
