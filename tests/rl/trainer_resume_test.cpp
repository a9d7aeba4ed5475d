// Runs that stop and go on: a resumed run must be the run that never stopped, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checkpoint_directory.hpp"
#include "rl/training_run.hpp"

namespace coppice {
namespace {

using test::RunOptions;
using test::TemporaryDirectory;
using test::tiny_rollouts;
using test::tiny_trainer_config;
using test::TrainingRun;

// Lines of metrics.jsonl without what a clock or the machine says.
std::vector<nlohmann::json> timeless_lines(const std::filesystem::path& run_dir) {
  std::istringstream text(test::read_file(run_dir / "metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
    for (const char* name :
         {"seconds", "step_seconds", "rows_per_second", "logical_tokens_per_second",
          "peak_memory_bytes", "peak_resident_bytes"})
      lines.back().erase(name);
  }
  return lines;
}

CheckpointReader newest(const std::filesystem::path& run_dir) {
  return CheckpointSearch(run_dir / "checkpoints").next().value();
}

struct Case {
  DType dtype;
  std::int64_t stop_after;
  Sharing sharing = Sharing::kGrouped;
};
class TrainerResume : public testing::TestWithParam<Case> {};

// Three epochs of four groups, two a step, three updates a batch: 18 steps. Stops after 9 (between
// epochs' batches), 7 (one update into a batch) and 3. Seen red without the old log-probs in the
// checkpoint, with the source's position behind the batch in flight, and with AdamW's count lost.
TEST_P(TrainerResume, GoesOnBitForBit) {
  const auto [dtype, stop_after, sharing] = GetParam();
  const RunOptions options{.dtype = dtype, .epochs = 3, .shuffle = true};
  TrainerConfig config = tiny_trainer_config();
  config.loss.updates_per_batch = 3;
  config.loss.entropy_coef = 0.01;
  config.optimizer.schedule = {LrScheduleKind::kCosine, 1e-3, 2, 0};
  config.checkpoint.keep_precision = true;
  config.batching.sharing = sharing;
  TrainingRun whole(tiny_rollouts(), config, options);
  EXPECT_EQ(whole.trainer().run(), RunEnd::kDone);
  EXPECT_EQ(whole.trainer().steps(), 18);

  const TemporaryDirectory directory;
  {
    TrainingRun first(tiny_rollouts(), config, options, &directory.path());
    const auto stop = [&, after = stop_after] { return first.trainer().steps() >= after; };
    EXPECT_EQ(first.trainer().run(stop), RunEnd::kStopped);
    EXPECT_EQ(first.trainer().steps(), stop_after);
  }
  TrainingRun second(tiny_rollouts(), config, options, &directory.path());
  second.trainer().restore(newest(directory.path()));
  EXPECT_EQ(second.trainer().steps(), stop_after);
  EXPECT_EQ(second.trainer().run(), RunEnd::kDone);
  EXPECT_EQ(second.weights(), whole.weights());
  EXPECT_EQ(second.moments(), whole.moments());
  EXPECT_EQ(second.trainer().optimizer().applied_steps(), 18);
  const auto lines = timeless_lines(directory.path());
  EXPECT_EQ(lines.size(), 18u);
  EXPECT_EQ(lines, timeless_lines(whole.run_dir()));
  // Under AUTO both packings are chosen, and chosen alike in the three runs.
  const bool mixed = std::any_of(lines.begin(), lines.end(),
                                 [](const auto& line) { return line["sharing"] == "MIXED"; });
  EXPECT_EQ(mixed, sharing == Sharing::kAuto);
}

INSTANTIATE_TEST_SUITE_P(Runs, TrainerResume,
                         testing::Values(Case{DType::kF64, 9}, Case{DType::kF64, 7},
                                         Case{DType::kF32, 7}, Case{DType::kF32, 3},
                                         Case{DType::kF32, 7, Sharing::kAuto}),
                         [](const auto& c) {
                           return fmt::format(
                               "{}After{}{}", c.param.dtype == DType::kF64 ? "F64" : "F32",
                               c.param.stop_after, c.param.sharing == Sharing::kAuto ? "Auto" : "");
                         });

TEST(TrainerRun, ResumesFromAnEarlierCheckpointAndRewritesTheLinesBehindIt) {
  TrainerConfig config = tiny_trainer_config();
  config.checkpoint.every_steps = 2;
  config.checkpoint.keep_last = 10;
  TrainingRun whole(tiny_rollouts(), config, {.epochs = 3});
  whole.trainer().run();
  const auto lines = timeless_lines(whole.run_dir());
  ASSERT_EQ(lines.size(), 6u);
  std::filesystem::remove(whole.run_dir() / "checkpoints" / "step_00000006.h5");
  std::filesystem::remove(whole.run_dir() / "checkpoints" / "step_00000004.h5");

  TrainingRun again(tiny_rollouts(), config, {.epochs = 3}, &whole.run_dir());
  again.trainer().restore(newest(whole.run_dir()));
  EXPECT_EQ(again.trainer().steps(), 2);
  again.trainer().run();
  EXPECT_EQ(timeless_lines(whole.run_dir()).size(), 6u);
}

// Seen red: the flag set back before the read.
TEST(TrainerRun, ADamagedCheckpointLeavesNothingToTrainOnUntilAnotherIsRestored) {
  TrainerConfig config = tiny_trainer_config();
  config.checkpoint.every_steps = 2;
  config.checkpoint.keep_last = 10;
  config.checkpoint.keep_precision = true;
  TrainingRun whole(tiny_rollouts(), config, {.epochs = 3});
  whole.trainer().run();
  const auto newest_file = whole.run_dir() / "checkpoints" / "step_00000006.h5";
  std::string bytes = test::read_file(newest_file);
  const auto weights = whole.weights();
  const auto at = bytes.find(
      std::string(reinterpret_cast<const char*>(weights.data()), 4 * sizeof(weights[0])));
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  test::write_file(newest_file, bytes);

  TrainingRun again(tiny_rollouts(), config, {.epochs = 3}, &whole.run_dir());
  CheckpointSearch search(whole.run_dir() / "checkpoints");
  EXPECT_THROW(again.trainer().restore(search.next().value()), DamagedCheckpoint);
  EXPECT_THROW(again.trainer().step(), ContractError);
  EXPECT_THROW(again.trainer().save(), ContractError);
  again.trainer().restore(search.next().value());
  EXPECT_EQ(again.trainer().steps(), 4);
  again.trainer().run();
  EXPECT_EQ(again.weights(), whole.weights());
  EXPECT_EQ(again.moments(), whole.moments());
}

TEST(TrainerRun, SavesEveryFewStepsAndAtTheEndAndKeepsTheLast) {
  TrainerConfig config = tiny_trainer_config();
  config.checkpoint.every_steps = 2;
  config.checkpoint.keep_last = 2;
  config.limits.max_steps = 5;
  std::vector<std::int64_t> saved;
  TrainingRun run(tiny_rollouts(), config, {.epochs = 4});
  EXPECT_EQ(run.trainer().planned_steps(), 5);
  EXPECT_EQ(run.trainer().run(), RunEnd::kDone);
  const auto files = list_checkpoints(run.run_dir() / "checkpoints");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].filename(), "step_00000004.h5");
  EXPECT_EQ(files[1].filename(), "step_00000005.h5");
  EXPECT_FALSE(run.steps()[0].seconds.checkpoint.has_value());
  EXPECT_TRUE(run.steps()[1].seconds.checkpoint.has_value());
  EXPECT_TRUE(run.steps()[4].seconds.checkpoint.has_value());
}

TEST(TrainerRun, TheStepLimitCountsResumedSteps) {
  TrainerConfig config = tiny_trainer_config();
  config.limits.max_steps = 3;
  TrainingRun first(tiny_rollouts(), config, {.epochs = 4});
  first.trainer().run();
  EXPECT_EQ(first.trainer().steps(), 3);
  config.limits.max_steps = 5;
  TrainingRun second(tiny_rollouts(), config, {.epochs = 4}, &first.run_dir());
  second.trainer().restore(newest(first.run_dir()));
  second.trainer().run();
  EXPECT_EQ(second.trainer().steps(), 5);
  EXPECT_EQ(second.steps().size(), 2u);
}

TEST(TrainerRun, AFinishedRunStartedAgainChangesNothing) {
  TrainingRun first(tiny_rollouts(), tiny_trainer_config());
  first.trainer().run();
  const auto state_of_directory = [&] {
    std::map<std::string, std::pair<std::filesystem::file_time_type, std::string>> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(first.run_dir()))
      if (entry.is_regular_file())
        files[entry.path().string()] = {entry.last_write_time(), test::read_file(entry.path())};
    return files;
  };
  const auto before = state_of_directory();
  EXPECT_EQ(before.size(), 2u);
  TrainingRun second(tiny_rollouts(), tiny_trainer_config(), {}, &first.run_dir());
  second.trainer().restore(newest(first.run_dir()));
  EXPECT_EQ(second.trainer().run(), RunEnd::kDone);
  EXPECT_TRUE(second.steps().empty());
  EXPECT_EQ(state_of_directory(), before);
}

TEST(TrainerRun, AStopBeforeTheFirstStepSavesNothing) {
  TrainingRun run(tiny_rollouts(), tiny_trainer_config());
  EXPECT_EQ(run.trainer().run([] { return true; }), RunEnd::kStopped);
  EXPECT_EQ(run.trainer().steps(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(run.run_dir()));
}

TEST(TrainerRun, TwoRunsAreBitIdentical) {
  const auto weights = [] {
    TrainingRun run(tiny_rollouts(), tiny_trainer_config(),
                    {.dtype = DType::kF32, .shuffle = true});
    run.trainer().run();
    return run.weights();
  };
  EXPECT_EQ(weights(), weights());
}

}  // namespace
}  // namespace coppice
