// Runs that stop on one grid and go on, there or elsewhere: the same weights and moments bit for
// bit at the checkpoint, the same run behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checkpoint_directory.hpp"
#include "ranks/grid_run.hpp"

namespace coppice {
namespace {

using test::distance;
using test::grid_cases;
using test::GridCase;
using test::GridRun;
using test::make_grid;
using test::RunOptions;
using test::SharedDirectory;
using test::tiny_rollouts;
using test::tiny_trainer_config;
using test::TinyCase;
using test::TrainingRun;

const TinyCase kTiny{"Qwen3", true, 4, 2, 6};
const RunOptions kOptions{.tiny = kTiny, .epochs = 3, .shuffle = true};

// Two groups a step, two updates a batch: a stop after three steps is inside a batch, whose old
// log-probs travel along.
TrainerConfig config_of_run() {
  TrainerConfig config = tiny_trainer_config();
  config.loss.updates_per_batch = 2;
  config.batching = {Sharing::kAuto, 38};
  config.optimizer.schedule = {LrScheduleKind::kCosine, 1e-3, 2, 0};
  config.checkpoint.keep_precision = true;
  config.limits.max_steps = 6;
  return config;
}

std::filesystem::path checkpoint_of(const std::filesystem::path& run_dir, std::int64_t step) {
  return run_dir / "checkpoints" / checkpoint_file_name(step);
}

// The grids of the session, and on from each of them the next one.
template <class Body>
void from_grid_to_grid(Body&& body) {
  const ModelConfig model = test::config_of(kTiny);
  const std::vector<GridCase> cases = grid_cases(model);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const GridCase &a = cases[i], &b = cases[(i + 1) % cases.size()];
    const auto grid_a = make_grid(a, model), grid_b = make_grid(b, model);
    SCOPED_TRACE(fmt::format("{} -> {} rank {}", name_of(a), name_of(b), grid_a->world().rank()));
    body(a, *grid_a, b, *grid_b);
  }
}

// Mutations seen red: moments left out when restored; moments written by every rank that holds
// them; other old log-probs for the batch in flight.
TEST(TrainerOverGrids, ACheckpointHoldsTheSameOnEveryGrid) {
  from_grid_to_grid(
      [](const GridCase& a, ProcessGrid& grid_a, const GridCase& b, ProcessGrid& grid_b) {
        const SharedDirectory first(grid_a.world()), second(grid_a.world());
        GridRun run_a(grid_a, a, tiny_rollouts(), config_of_run(), kOptions, first.path());
        for (int step = 0; step < 3; ++step) run_a.trainer().step();
        run_a.trainer().save();
        GridRun run_b(grid_b, b, tiny_rollouts(), config_of_run(), kOptions, second.path());
        run_b.trainer().restore(CheckpointReader(checkpoint_of(first.path(), 3), grid_b.world()));
        EXPECT_EQ(run_b.trainer().steps(), 3);
        EXPECT_EQ(run_b.weights(), run_a.weights());
        EXPECT_EQ(run_b.moments(), run_a.moments());
        EXPECT_EQ(run_b.trainer().optimizer().applied_steps(), 3);
        run_b.trainer().save();
        GridRun again(grid_a, a, tiny_rollouts(), config_of_run(), kOptions, second.path());
        again.trainer().restore(CheckpointReader(checkpoint_of(second.path(), 3), grid_a.world()));
        EXPECT_EQ(again.weights(), run_a.weights());
        EXPECT_EQ(again.moments(), run_a.moments());
        // And on the same grid it goes on as if it had never stopped.
        for (int step = 3; step < 6; ++step) {
          run_a.trainer().step();
          again.trainer().step();
        }
        EXPECT_EQ(again.weights(), run_a.weights());
        EXPECT_EQ(again.moments(), run_a.moments());
      });
}

// Mutations seen red: a stop heeded by the rank that was told alone; metrics written by every rank.
TEST(TrainerOverGrids, ARunMayGoOnOnAnotherGrid) {
  TrainingRun one(tiny_rollouts(), config_of_run(), kOptions);
  const auto start = one.weights();
  for (int step = 0; step < 6; ++step) one.trainer().step();
  const double moved = distance(one.weights(), start);
  from_grid_to_grid([&](const GridCase& a, ProcessGrid& grid_a, const GridCase& b,
                        ProcessGrid& grid_b) {
    const SharedDirectory directory(grid_a.world());
    GridRun run_a(grid_a, a, tiny_rollouts(), config_of_run(), kOptions, directory.path());
    // One rank's wish to stop is enough.
    const int last = grid_a.world().size() - 1;
    EXPECT_EQ(run_a.trainer().run(
                  [&] { return grid_a.world().rank() == last && run_a.trainer().steps() == 3; }),
              RunEnd::kStopped);
    ASSERT_EQ(run_a.trainer().steps(), 3);
    GridRun run_b(grid_b, b, tiny_rollouts(), config_of_run(), kOptions, directory.path());
    run_b.trainer().restore(CheckpointReader(checkpoint_of(directory.path(), 3), grid_b.world()));
    EXPECT_EQ(run_b.trainer().run(), RunEnd::kDone);
    EXPECT_EQ(run_b.trainer().steps(), 6);
    EXPECT_LE(distance(run_b.weights(), one.weights()), 1e-8 * moved);
    // One metrics file, written by one rank.
    std::istringstream text(test::read_file(directory.path() / "metrics.jsonl"));
    std::int64_t lines = 0;
    for (std::string line; std::getline(text, line);)
      EXPECT_EQ(nlohmann::json::parse(line)["step"], ++lines);
    EXPECT_EQ(lines, 6);
    directory.wait_for_all();
  });
}

// What one rank saved, alone and without MPI, any grid takes up.
TEST(TrainerOverGrids, OneRanksCheckpointGoesOnOnEveryGrid) {
  const ModelConfig model = test::config_of(kTiny);
  TrainingRun one(tiny_rollouts(), config_of_run(), kOptions);
  for (int step = 0; step < 3; ++step) one.trainer().step();
  one.trainer().save();
  const auto weights = one.weights();
  for (const GridCase& which : grid_cases(model)) {
    const auto grid = make_grid(which, model);
    SCOPED_TRACE(fmt::format("{} rank {}", name_of(which), grid->world().rank()));
    const SharedDirectory directory(grid->world());
    GridRun run(*grid, which, tiny_rollouts(), config_of_run(), kOptions, directory.path());
    // Each rank reads the file it made itself: they are the same.
    run.trainer().restore(CheckpointReader(checkpoint_of(one.run_dir(), 3)));
    EXPECT_EQ(run.weights(), weights);
    EXPECT_FALSE(run.trainer().step()->skipped);
  }
}

}  // namespace
}  // namespace coppice
