#include "launch/train_command.hpp"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint_directory.hpp"
#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"
#include "launch/progress.hpp"
#include "launch/run_data.hpp"
#include "launch/run_lock.hpp"
#include "launch/stop_signal.hpp"
#include "rl/trainer.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string config;
  std::vector<std::string> set;
};

// A directory can be made there: what exists of the path is directories.
void check_run_dir(const fs::path& run_dir) {
  std::error_code error;
  fs::path existing = fs::absolute(run_dir);
  while (!fs::exists(fs::symlink_status(existing, error)) && existing.has_relative_path())
    existing = existing.parent_path();
  Problems problems;
  if (!fs::is_directory(existing, error))
    problems.add("run_dir: {} is not a directory. Give another run_dir.", existing.string());
  const fs::path checkpoints = run_dir / "checkpoints";
  if (fs::exists(checkpoints, error) && !fs::is_directory(checkpoints, error))
    problems.add("run_dir: {} is not a directory. Give another run_dir.", checkpoints.string());
  for (const char* name : {"config.textproto", "metrics.jsonl"})
    if (fs::is_directory(run_dir / name, error))
      problems.add("run_dir: {} is not a file. Give another run_dir.", (run_dir / name).string());
  problems.throw_if_any<ConfigError>();
}

// Where the run goes on, or nothing where it begins.
std::optional<CheckpointReader> checkpoint_to_resume(const RunConfig& config) {
  const fs::path directory = config.trainer.run_dir / "checkpoints";
  const auto all = list_checkpoints(directory);
  if (all.empty()) return std::nullopt;
  if (!config.resume)
    throw ConfigError({fmt::format(
        "checkpoint.resume: NEVER, but {} holds checkpoints (they would be lost). Give another "
        "run_dir, or set checkpoint.resume=AUTO to go on.",
        directory.string())});
  NewestCheckpoint newest = find_newest_valid_checkpoint(directory);
  if (!newest.reader) {
    newest.passed_over.push_back(fmt::format(
        "{}: no checkpoint is whole. Move them away to start anew.", directory.string()));
    throw DataError(newest.passed_over);
  }
  for (const auto& line : newest.passed_over) fmt::print(stderr, "{}\n", line);
  return std::move(newest.reader);
}

std::string summary(const StepMetrics& metrics) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) text += fmt::format("{} {:.4g}  ", name, *value);
  };
  if (metrics.skipped) text += "skipped  ";
  add("loss", metrics.loss);
  add("grad norm", metrics.grad_norm);
  add("reward", metrics.reward_mean);
  add("kl", metrics.kl);
  return text + fmt::format("{} rows  {:.2f} s", metrics.rows, metrics.step_seconds);
}

void train(const Options& options) {
  const StopSignal stop;  // from here on, so that a signal during loading is kept too
  RunConfig config = load_run_config(options.config, options.set, RunConfigUse::kTrain);
  TrainerConfig& trainer_config = config.trainer;
  check_run_dir(trainer_config.run_dir);
  // A run that is refused leaves no directory, so one that does not exist is locked when it is
  // made.
  std::optional<RunLock> lock;
  if (fs::exists(trainer_config.run_dir)) lock.emplace(trainer_config.run_dir);
  auto checkpoint = checkpoint_to_resume(config);
  const bool resumed = checkpoint.has_value();
  RunData data = open_run_data(config, std::move(checkpoint));
  const std::string origin = data.model.reader.path().string();
  const CheckpointHeader& header = data.model.reader.header();
  if (resumed) {
    const auto changes =
        changes_that_forbid_resume(header.run_config_textproto, config.text(), origin);
    if (!changes.empty()) throw ConfigError(changes);
  }
  trainer_config.tokenizer = header.tokenizer;

  Session session(config.threads_per_rank);
  std::unique_ptr<PolicyModel> model;
  if (resumed)
    model = allocate_model(data.model, session, config.precision, WithGradients::kYes);
  else
    model = load_model(data.model, session, config.precision, WithGradients::kYes);
  std::optional<Progress> progress;
  ProcessGrid grid;
  Trainer trainer(
      session.ctx(), *model, data.source, trainer_config, grid,
      {.step_done =
           [&](const StepMetrics& metrics) { progress->update(metrics.step, summary(metrics)); },
       .checkpoint_saved = {}});
  if (resumed) trainer.restore(data.model.reader);
  const std::string run_dir = trainer_config.run_dir.string();
  const std::int64_t steps = trainer.planned_steps().value_or(0);
  if (trainer.steps() >= steps) {
    trainer.settle_metrics();
    const std::int64_t limit = trainer_config.limits.max_steps;
    fmt::print("{} is finished: {} steps are done.{}\n", run_dir, trainer.steps(),
               limit > 0 && limit <= trainer.steps() ? " More need a larger limits.max_steps."
                                                     : " The rollouts have no more.");
    return;
  }
  if (resumed) fmt::print(stderr, "going on from {}\n", origin);

  fs::create_directories(trainer_config.run_dir);
  if (!lock) lock.emplace(trainer_config.run_dir);
  remove_leftovers(trainer_config.run_dir);
  write_file_atomically(trainer_config.run_dir / "config.textproto", config.text());
  progress.emplace("step", steps, trainer.steps());
  const RunEnd end = trainer.run([&] { return stop.requested(); });
  progress.reset();
  const auto last = trainer_config.run_dir / "checkpoints" / checkpoint_file_name(trainer.steps());
  if (end == RunEnd::kStopped && trainer.steps() == 0)
    fmt::print("stopped at step 0 of {}; nothing was done yet\n", steps);
  else if (end == RunEnd::kStopped)
    fmt::print("stopped at step {} of {}; the same command goes on from {}\n", trainer.steps(),
               steps, last.string());
  else
    fmt::print("done: {} steps; {}\n", trainer.steps(), last.string());
}

}  // namespace

void add_train_command(Commands& commands) {
  auto options = std::make_shared<Options>();
  commands
      .add("train", "Trains a model on recorded rollouts as a run config tells",
           [options] { train(*options); })
      .option("--config", options->config, "run config (.textproto)", Need::kRequired)
      .list("--set", options->set,
            "FIELD=VALUE, as if given at the end of the config; may be given several times, e.g. "
            "--set loss.kind=DAPO")
      .footer(
          "Every field of a run config, with units and defaults: configs/run_config.proto.\n"
          "Writes into run_dir: config.textproto (the resolved config), metrics.jsonl (one object "
          "per step),\n"
          "checkpoints/step_*.h5. The same command again goes on from the newest whole "
          "checkpoint.\n"
          "The first SIGINT or SIGTERM finishes the step, saves and ends with status 0; a second "
          "one ends at once.");
}

}  // namespace coppice
