#include "launch/study_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/pending_file.hpp"
#include "checkpoint/small_file.hpp"
#include "core/build_config.hpp"
#include "launch/device_choice.hpp"
#include "launch/fingerprints.hpp"
#include "launch/grid_check.hpp"
#include "launch/host.hpp"
#include "launch/open_model.hpp"
#include "launch/run_lock.hpp"
#include "launch/study_csv.hpp"
#include "launch/study_largest_group.hpp"
#include "launch/study_report.hpp"
#include "launch/study_run.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct StudyOptions {
  std::string config;
};

// What a study works on, read before anything is done.
struct StudyInput {
  std::vector<StudyModel> models;
  std::optional<ClusterProfile> cluster;
  /// Of the content of every file it is made of: a study goes on with the same ones only.
  std::vector<Fingerprint> prints;
};

void open_models(const StudyConfig& config, const Job& job, StudyInput& input) {
  for (const auto& name : config.model_configs) {
    const std::string json = read_small_file(name);
    input.models.push_back({name, ModelConfig::parse(json, name)});
    input.prints.push_back(fingerprint_of_text("model_config: " + name, json));
  }
  if (!config.model_checkpoint.empty()) {
    const ModelFile file = open_model(CheckpointReader(config.model_checkpoint), job);
    input.models.push_back({config.model_checkpoint, file.config});
    input.prints.push_back(fingerprint_of_model(
        "base: model.checkpoint: " + config.model_checkpoint, *file.checkpoint()));
  }
  if (!config.model_hf.empty()) {
    const HfModel model = open_hf_model(config.model_hf);
    input.models.push_back({config.model_hf, model.config});
    input.prints.push_back(fingerprint_of_hf("base: model.hf: " + config.model_hf, model));
  }
}

StudyInput read_input(const StudyConfig& config, const Launcher& launcher, const Job& job) {
  StudyInput input;
  Problems problems;
  int most_ranks = 1;
  for (const GridSizes& grid : config.sweep.grid) most_ranks = std::max(most_ranks, grid.ranks());
  launcher.check(most_ranks, problems);
  input.prints.push_back(fingerprint_of_text("base: " + config.base, config.base_text));
  try {
    open_models(config, job, input);
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  for (const StudyModel& model : input.models)
    for (std::size_t i = 0; i < config.sweep.grid.size(); ++i)
      problems.add_all(
          tensor_problems(model.config, config.sweep.grid[i].tensor, config.tensor_places[i]));
  if (!config.cluster.empty()) {
    try {
      input.cluster = load_cluster(config.cluster);
      const bool on_cuda = input.cluster->kind == DeviceKind::kCuda;
      if (on_cuda != (config.score_device == "cuda"))
        problems.add(
            "cluster: {} is one of {} devices, and the study runs on {}. Give another one.",
            config.cluster, on_cuda ? "CUDA" : "CPU", config.score_device);
    } catch (const InputError& error) {
      problems.add_all(error.problems());
    }
  }
  if (!config.rollouts.empty()) {
    try {
      read_rollouts(config.rollouts, {});
      input.prints.push_back(fingerprint_of_file("rollouts: " + config.rollouts, config.rollouts));
    } catch (const InputError& error) {
      problems.add_all(error.problems());
    }
  }
  problems.throw_if_any<ConfigError>();
  return input;
}

nlohmann::ordered_json json_of(const std::vector<Fingerprint>& prints) {
  auto json = nlohmann::ordered_json::object();
  for (const Fingerprint& print : prints) json[print.what] = fmt::format("{:016x}", print.hash);
  return json;
}

// Begins a study in the directory, or sees that it is this one that goes on there.
void begin_or_go_on(const StudyConfig& config, const StudyInput& input) {
  const fs::path text = config.out_dir / "study.textproto", files = config.out_dir / "inputs.json";
  const auto now = json_of(input.prints);
  if (fs::exists(text) && fs::exists(files)) {
    Problems problems;
    problems.add_all(
        changes_that_forbid_going_on(read_small_file(text), config.text, text.string()));
    const auto before = nlohmann::ordered_json::parse(read_small_file(files), nullptr, false);
    if (problems.empty())
      for (const auto& [what, hash] : now.items())
        if (!before.is_object() || !before.contains(what) || before[what] != hash)
          problems.add(
              "{} is not what it was when this study began (its points could not be compared). Put "
              "it back, or start anew in another out_dir.",
              what);
    problems.throw_if_any<ConfigError>();
  } else if (fs::exists(config.out_dir / "points.jsonl")) {
    throw ConfigError({fmt::format(
        "out_dir: {} holds the points of a study that is not known (study.textproto or inputs.json "
        "is missing). Give another out_dir.",
        config.out_dir.string())});
  } else {
    fs::remove_all(config.out_dir / "work");  // of nobody knows what
  }
  write_file_atomically(files, now.dump(2) + "\n");
  write_file_atomically(text, config.text);
}

void study(const StudyOptions& options, Job& job) {
  const StudyConfig config = load_study_config(options.config, size_of(job));
  const Launcher launcher;
  const StudyInput input = read_input(config, launcher, job);
  std::error_code error;
  fs::create_directories(config.out_dir, error);
  if (error)
    throw ConfigError({fmt::format("out_dir: {} cannot be made: {}. Give another out_dir.",
                                   config.out_dir.string(), error.message())});
  const RunLock lock(config.out_dir, "out_dir", "study");
  begin_or_go_on(config, input);
  remove_leftovers(config.out_dir);

  StudyRunner study(config, input.models, input.cluster, launcher,
                    [&] { return job.stop_requested(); });
  StudyRecords records(config.out_dir / "points.jsonl", study.points(), study.model_names(),
                       {machine_description(), std::string(build::kVersion),
                        "coppice study --config " + options.config});
  if (!records.all().empty() && study.done(records) < study.all())
    fmt::print(stderr, "going on behind point {} of {}\n", study.done(records), study.all());
  if (!study.run(records)) {
    fmt::print("stopped at point {} of {}; the same command goes on\n", study.done(records),
               study.all());
    return;
  }
  if (config.memory_budget_bytes > 0) {
    const auto lines = largest_groups(config, input.models, study.model_names(),
                                      [&] { return job.stop_requested(); });
    if (!lines) {
      fmt::print("stopped in the search of the largest groups; the same command goes on\n");
      return;
    }
    write_file_atomically(config.out_dir / "largest_group.jsonl", *lines);
  }
  write_file_atomically(config.out_dir / "table.csv",
                        study_csv(study.points(), study.model_names(), records.all()));
  write_study_report(config.out_dir);
  const auto failed = std::count_if(records.all().begin(), records.all().end(),
                                    [](const StudyRecord& record) { return !record.ok(); });
  fmt::print("done: {} points{}; {}\n", study.all(),
             failed > 0 ? fmt::format(", {} of them failed", failed) : "",
             (config.out_dir / "report.html").string());
}

}  // namespace

void add_study_command(Commands& commands) {
  auto options = std::make_shared<StudyOptions>();
  commands
      .add("study",
           "Short training runs for every combination of lengths, group sizes, sharing and grids, "
           "and what they come to",
           {.body = [options](Job& job) { study(*options, job); },
            .on_signal = OnSignal::kFinishStep})
      .option("--config", options->config, "study config (.textproto)", Need::kRequired)
      .footer(
          "Every field of a study config, with defaults: configs/study_config.proto.\n"
          "Writes into out_dir: points.jsonl (one object per run of a point, as it ends), "
          "table.csv "
          "(one row\nper point), report.html and report.md, study.textproto (the resolved config), "
          "work/ (models and what\nis being done).\n"
          "Every run is a process of its own, under mpirun where its grid has several ranks, or a "
          "job step of\nsrun inside a Slurm allocation. A run that fails or finds no memory is "
          "recorded as such, and the\nstudy goes on. The same command again goes on from the runs "
          "that are recorded.\n"
          "The first SIGINT, SIGTERM or SIGUSR1 ends the run at hand, keeps what is recorded and "
          "ends with\nstatus 0; a second one ends at once.\n"
          "What the results mean: docs/studies.md.");
}

}  // namespace coppice
