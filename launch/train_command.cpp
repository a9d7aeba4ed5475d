#include "launch/train_command.hpp"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint_directory.hpp"
#include "core/error.hpp"
#include "launch/device_choice.hpp"
#include "launch/fingerprints.hpp"
#include "launch/model_tensors.hpp"
#include "launch/progress.hpp"
#include "launch/run_data.hpp"
#include "launch/run_directory.hpp"
#include "launch/session.hpp"
#include "launch/tensorboard_file.hpp"
#include "launch/trace_file.hpp"
#include "parallel/exchange.hpp"
#include "rl/trainer.hpp"
#include "rl/training_state.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct TrainOptions {
  std::string config;
  std::vector<std::string> set;
  std::optional<std::string> trace;
};

// A directory can be made there: what exists of the path is directories.
void check_run_dir(const fs::path& run_dir, Problems& problems) {
  std::error_code error;
  fs::path existing = fs::absolute(run_dir);
  const auto is_absent = [&] {
    return fs::symlink_status(existing, error).type() == fs::file_type::not_found;
  };
  while (is_absent() && existing.has_relative_path()) existing = existing.parent_path();
  if (!fs::is_directory(existing, error))
    problems.add("run_dir: {} is not a directory{}. Give another run_dir.", existing.string(),
                 error ? fmt::format(" that can be used ({})", error.message()) : "");
  const fs::path checkpoints = run_dir / "checkpoints";
  if (fs::exists(checkpoints, error) && !fs::is_directory(checkpoints, error))
    problems.add("run_dir: {} is not a directory. Give another run_dir.", checkpoints.string());
  for (const char* name : {"config.textproto", "metrics.jsonl"})
    if (fs::exists(run_dir / name, error) && !fs::is_regular_file(run_dir / name, error))
      problems.add("run_dir: {} is not a file. Give another run_dir.", (run_dir / name).string());
}

void check_outputs(const TrainOptions& options, const RunConfig& config, const Job& job) {
  const fs::path& run_dir = config.trainer.run_dir;
  Problems problems;
  check_run_dir(run_dir, problems);
  if (options.trace && job.is_first())  // the others write none
    check_trace_file(*options.trace, run_dir,
                     {options.config, config.model_checkpoint, config.rollouts}, problems);
  problems.throw_if_any<ConfigError>();
}

// The checkpoints of the run directory. What rank 0 sees of it counts.
CheckpointSearch search_checkpoints(const RunConfig& config, Communicator& world) {
  const fs::path directory = config.trainer.run_dir / "checkpoints";
  CheckpointSearch search(directory, world);
  if (search.has_any() && !config.resume)
    throw ConfigError({fmt::format(
        "checkpoint.resume: NEVER, but {} holds checkpoints (they would be lost). Give another "
        "run_dir, or set checkpoint.resume=AUTO to go on.",
        directory.string())});
  return search;
}

// What shows without reading values: that a run can go on from there. The ranks see one file, and
// so the same problems.
void check_whole(const CheckpointReader& reader) {
  const std::string place = reader.path().string();
  const auto config =
      ModelConfig::parse(reader.header().model_config_json, place + " (/config/model)");
  reader.check_parameters(tensors_of(config));
  trainer_state_from_json(reader.header().trainer_json, place);
}

// Where the run goes on, or nothing where it begins.
std::optional<CheckpointReader> checkpoint_to_resume(CheckpointSearch& search,
                                                     const RunConfig& config, const Job& job) {
  if (!search.has_any()) return std::nullopt;
  std::optional<CheckpointReader> reader;
  while (!reader && (reader = search.next())) {
    try {
      check_whole(*reader);
    } catch (const InputError& error) {
      search.pass_over(error);
      reader.reset();
    }
  }
  auto passed_over = search.take_passed_over();
  if (!reader) {
    passed_over.push_back(fmt::format("{}: no checkpoint is whole. Move them away to start anew.",
                                      (config.trainer.run_dir / "checkpoints").string()));
    throw DataError(passed_over);
  }
  if (job.is_first())
    for (const auto& line : passed_over) fmt::print(stderr, "{}\n", line);
  return reader;
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

// What a run works on, read and agreed on by all ranks.
struct Input {
  bool resumed = false;
  RunData data;
};

Input read_input(const RunConfig& config, Job& job, Communicator& world, CheckpointSearch& search) {
  auto checkpoint = checkpoint_to_resume(search, config, job);
  const bool resumed = checkpoint.has_value();
  Input input{resumed, open_run_data(config, job, std::move(checkpoint))};
  const ModelFile& model = input.data.model;
  const std::string origin = model.path().string();
  if (resumed) {
    const auto changes = changes_that_forbid_resume(
        model.checkpoint()->header().run_config_textproto, config.text(), origin);
    if (!changes.empty()) throw ConfigError(changes);
  }
  const auto rollouts =
      fingerprint_of_file("the rollouts file " + config.rollouts, config.rollouts);
  if (const HfModel* hf = model.hf()) {
    job.agree({rollouts, fingerprint_of_hf("the model directory " + origin, *hf)});
    job.agree(
        {fingerprint_of_hf_values("the content of the safetensors in " + origin, *hf, world)});
  } else {
    job.agree(
        {rollouts, fingerprint_of_model((resumed ? "the checkpoint " : "the model file ") + origin,
                                        *model.checkpoint())});
  }
  return input;
}

void print_end(const Trainer& trainer, RunEnd end, std::int64_t steps, const fs::path& run_dir) {
  const auto last = run_dir / "checkpoints" / checkpoint_file_name(trainer.steps());
  if (end == RunEnd::kStopped && trainer.steps() == 0)
    fmt::print("stopped at step 0 of {}; nothing was done yet\n", steps);
  else if (end == RunEnd::kStopped)
    fmt::print("stopped at step {} of {}; the same command goes on from {}\n", trainer.steps(),
               steps, last.string());
  else if (trainer.saved_step() < trainer.steps())
    fmt::print("done: {} steps; not saved (checkpoint.save_at_end: false)\n", trainer.steps());
  else
    fmt::print("done: {} steps; {}\n", trainer.steps(), last.string());
}

// One run from where it begins or goes on to its end. False: the checkpoint it was to go on from is
// damaged; nothing of it is left, and the next older one may be tried.
bool train_from(CheckpointSearch& search, const TrainOptions& options, RunConfig& config, Job& job,
                Communicator& world, std::optional<RunLock>& lock) {
  TrainerConfig& trainer_config = config.trainer;
  const fs::path& run_dir = trainer_config.run_dir;
  Input input = read_input(config, job, world, search);
  const ModelFile& file = input.data.model;
  trainer_config.tokenizer = file.tokenizer();

  std::optional<Trace> trace;
  if (options.trace) trace.emplace();
  Session session(job, config, file.config, trace ? &*trace : nullptr);
  std::unique_ptr<PolicyModel> model;
  if (input.resumed)
    model = allocate_model(file, session, config.precision, WithGradients::kYes);
  else
    model = load_model(file, session, config.precision, WithGradients::kYes);
  std::optional<Progress> progress;       // rank 0's
  std::optional<TensorboardFile> events;  // rank 0's
  Trainer trainer(session.ctx(), *model, input.data.source, trainer_config, session.grid(),
                  {.step_done =
                       [&](const StepMetrics& metrics) {
                         if (events) events->write(to_json(metrics));
                         if (progress) progress->update(metrics.step, summary(metrics));
                       },
                   .checkpoint_saved = {}});
  if (input.resumed) {
    try {
      trainer.restore(*file.checkpoint());
    } catch (const DamagedCheckpoint& damage) {
      search.pass_over(damage);
      return false;
    }
  }
  if (job.is_first()) events.emplace(run_dir, trainer.steps(), job.mpi().host());
  const std::int64_t steps = trainer.planned_steps().value_or(0);
  if (trainer.steps() >= steps) {
    trainer.settle_metrics();
    if (events) events->settle();
    const std::int64_t limit = trainer_config.limits.max_steps;
    if (job.is_first())
      fmt::print("{} is finished: {} steps are done.{}\n", run_dir.string(), trainer.steps(),
                 limit > 0 && limit <= trainer.steps() ? " More need a larger limits.max_steps."
                                                       : " The rollouts have no more.");
    return true;
  }
  lock = open_run_directory(run_dir, config.text(), std::move(lock), world, job.mpi().host(),
                            patience_for_run_directory(config.watchdog_seconds));
  if (job.is_first()) {
    if (input.resumed) fmt::print(stderr, "going on from {}\n", file.path().string());
    progress.emplace("step", steps, trainer.steps());
  }
  const RunEnd end = trainer.run([&] { return job.stop_requested(); });
  progress.reset();
  if (trace) write_trace(*options.trace, *trace, session.grid(), job.mpi().host());
  if (job.is_first()) print_end(trainer, end, steps, run_dir);
  return true;
}

void train(const TrainOptions& options, Job& job) {
  RunConfig config =
      load_run_config(options.config, options.set, RunConfigUse::kTrain, size_of(job));
  TrainerConfig& trainer_config = config.trainer;
  const fs::path& run_dir = trainer_config.run_dir;
  job.set_patience(config.watchdog_seconds);
  check_outputs(options, config, job);
  // A run that is refused leaves no directory, so one that does not exist is locked when it is
  // made.
  std::optional<RunLock> lock;  // rank 0's
  std::error_code error;
  if (job.is_first() && fs::exists(run_dir, error)) lock.emplace(run_dir);
  job.agree({fingerprint_of_text("the config " + options.config + " with its --set",
                                 config.common_text()),
             fingerprint_of_text("--trace", options.trace.value_or(""))});
  const auto world = job.world(config.watchdog_seconds);
  CheckpointSearch search = search_checkpoints(config, *world);
  while (!train_from(search, options, config, job, *world, lock)) {
  }
}

}  // namespace

void add_train_command(Commands& commands) {
  auto options = std::make_shared<TrainOptions>();
  commands
      .add("train", "Trains a model on recorded rollouts as a run config tells",
           {.body = [options](Job& job) { train(*options, job); },
            .ranks = RunsOn::kAllRanks,
            .on_signal = OnSignal::kFinishStep})
      .option("--config", options->config, "run config (.textproto)", Need::kRequired)
      .list("--set", options->set,
            "FIELD=VALUE, as if given at the end of the config; may be given several times, e.g. "
            "--set loss.kind=DAPO")
      .option("--trace", options->trace,
              fmt::format("file to write when the run ends: what every rank did and when, for "
                          "chrome://tracing or Perfetto; the first {} events of a rank",
                          Trace::kCapacity))
      .footer(
          "Every field of a run config, with units and defaults: configs/run_config.proto.\n"
          "Writes into run_dir: config.textproto (the resolved config), metrics.jsonl (one object "
          "per step),\n"
          "events.out.tfevents.* (the same for TensorBoard), checkpoints/step_*.h5. The same "
          "command again\ngoes on from the newest whole checkpoint. coppice report draws run_dir "
          "as a page.\n"
          "The first SIGINT, SIGTERM or SIGUSR1 (on any rank) finishes the step, saves and ends "
          "with status 0;\na second one ends at once.\n"
          "What a trace holds: docs/trace.md.");
}

}  // namespace coppice
