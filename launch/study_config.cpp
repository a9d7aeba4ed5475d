#include "launch/study_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "configs/study_config.pb.h"
#include "launch/config_value.hpp"
#include "launch/run_config.hpp"
#include "launch/study_config_check.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using config::Batching;
using config::Numerics;

template <class Values>
std::vector<std::int64_t> plain(const Values& values) {
  return {values.begin(), values.end()};
}

// Base as it is read before there is a point: what a study sets itself is set to what passes.
std::vector<std::string> stand_ins(const StudyConfig& study, const std::string& a_file) {
  std::vector<std::string> set = {"run_dir=" + (study.out_dir / "run").string(),
                                  "data.rollouts=" + a_file, "data.groups_per_step=1",
                                  "data.epochs=1", "limits.max_steps=1"};
  if (!study.model_configs.empty()) {
    set.push_back("model.checkpoint=" + a_file);
    set.emplace_back("model.hf=");
  }
  return set;
}

std::vector<std::string> grid_assignments(const GridSizes& grid) {
  return {fmt::format("parallel.tensor={}", grid.tensor),
          fmt::format("parallel.context={}", grid.context),
          fmt::format("parallel.data={}", grid.data)};
}

// The values that are given.
StudyConfig plain_values(const config::StudyConfig& config) {
  StudyConfig study;
  study.out_dir = config.out_dir();
  study.base = config.base();
  study.rollouts = config.rollouts();
  study.cluster = config.cluster();
  study.model_configs.assign(config.model_config().begin(), config.model_config().end());
  study.seed = config.seed();
  study.groups_per_step = config.groups_per_step();
  study.steps = config.steps();
  study.warmup_steps = config.warmup_steps();
  study.repetitions = config.repetitions();
  study.memory_budget_bytes = config.memory_budget_bytes();
  study.compare_logprobs = config.compare_logprobs();
  const config::Sweep& sweep = config.sweep();
  study.sweep.prefix_length = plain(sweep.prefix_length());
  study.sweep.response_length = plain(sweep.response_length());
  study.sweep.group_size = plain(sweep.group_size());
  for (const int value : sweep.sharing())
    study.sweep.sharing.push_back(Batching::Sharing_Name(static_cast<Batching::Sharing>(value)));
  for (const int value : sweep.recompute())
    study.sweep.recompute.push_back(
        Numerics::Recompute_Name(static_cast<Numerics::Recompute>(value)));
  for (const auto& grid : sweep.grid())
    study.sweep.grid.push_back({static_cast<int>(grid.tensor()), static_cast<int>(grid.context()),
                                static_cast<int>(grid.data())});
  return study;
}

// Adds to the message what the sweep does not give.
void complete_sweep(config::Sweep& sweep, const RunConfig& base) {
  if (sweep.sharing().empty()) {
    sweep.add_sharing(Batching::GROUPED);
    sweep.add_sharing(Batching::REPEATED);
  }
  if (sweep.recompute().empty())
    sweep.add_recompute(base.trainer.recompute == Recompute::kBlock       ? Numerics::BLOCK
                        : base.trainer.recompute == Recompute::kSelective ? Numerics::SELECTIVE
                                                                          : Numerics::NONE);
  if (sweep.grid().empty()) {
    config::Grid& grid = *sweep.add_grid();
    grid.set_tensor(base.grid.tensor);
    grid.set_context(base.grid.context);
    grid.set_data(base.grid.data);
  }
}

// Base as the runs of each grid read it. The same problem shows on several grids.
void check_runs(const StudyConfig& study, const std::string& a_file, const JobSize& job,
                Problems& problems) {
  std::vector<std::string> found;
  for (const GridSizes& grid : study.sweep.grid) {
    auto set = stand_ins(study, a_file);
    for (auto& assignment : grid_assignments(grid)) set.push_back(std::move(assignment));
    JobSize size = job;
    size.ranks = grid.ranks();
    try {
      load_run_config(study.base, set, RunConfigUse::kTrain, size);
    } catch (const InputError& error) {
      for (const auto& line : error.problems())
        if (std::find(found.begin(), found.end(), line) == found.end()) found.push_back(line);
    }
  }
  problems.add_all(found);
}

}  // namespace

StudyConfig load_study_config(const fs::path& path, const JobSize& job) {
  config::StudyConfig config;
  Problems problems;
  RunConfigText text(config, problems, "a study config");
  text.read(path.string(), config_file_content(path, "a study config"));
  check_study_config(config, text);
  StudyConfig study = plain_values(config);
  std::optional<RunConfig> base;
  try {
    std::error_code error;
    if (is_path(study.base) && fs::is_regular_file(study.base, error))
      base = load_run_config(study.base, stand_ins(study, study.base), RunConfigUse::kPlan, job);
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<ConfigError>();

  complete_sweep(*config.mutable_sweep(), *base);
  set_defaults(config);
  study = plain_values(config);
  study.text = config_text(config);
  study.base_text = config_file_content(study.base, "a run config");
  if (study.model_configs.empty()) {
    study.model_checkpoint = base->model_checkpoint;
    study.model_hf = base->model_hf;
  }
  study.job = job;
  study.score_device = base->device == DeviceKind::kCuda ? "cuda" : "cpu";
  study.has_kl = base->trainer.loss.kl_coef > 0;
  for (std::size_t i = 0; i < study.sweep.grid.size(); ++i) {
    const std::string field = fmt::format("sweep.grid[{}].tensor", i);
    study.tensor_places.push_back(text.given(field) ? text.place(field) : base->tensor_place);
  }
  check_study_size(study.sweep, study.models(), study.groups_per_step, text);
  check_runs(study, study.base, job, problems);
  problems.throw_if_any<ConfigError>();
  return study;
}

std::vector<std::string> changes_that_forbid_going_on(const std::string& before,
                                                      const std::string& now,
                                                      const std::string& origin) {
  config::StudyConfig old_config, new_config;
  Problems problems;
  RunConfigText(old_config, problems, "a study config").read(origin, before);
  RunConfigText(new_config, problems, "a study config").read("the resolved config", now);
  std::vector<std::string> lines = problems.lines();
  // Neither changes what a run of a point is.
  constexpr std::array<std::string_view, 5> kMayChange = {
      "cluster", "out_dir", "repetitions", "memory_budget_bytes", "compare_logprobs"};
  for (const auto& change : changed_fields(old_config, new_config))
    if (std::find(kMayChange.begin(), kMayChange.end(), change.path) == kMayChange.end())
      lines.push_back(fmt::format(
          "{}: {} = {} cannot change to {} (a study that goes on must be the one that began). Keep "
          "the old value, or start anew in another out_dir.",
          origin, change.path, change.before, change.now));
  return lines;
}

std::vector<std::string> run_assignments(const StudyConfig& study, const SweepPoint& point,
                                         const StudyRunFiles& files) {
  std::vector<std::string> set = {
      "run_dir=" + files.run_dir,
      "model.checkpoint=" + files.model_checkpoint,
      "model.hf=",
      "data.rollouts=" + files.rollouts,
      fmt::format("data.groups_per_step={}", study.groups_per_step),
      fmt::format("data.epochs={}", files.epochs),
      "data.shuffle=false",  // all points take the same groups in the same order
      "batching.sharing=" + point.sharing,
      "numerics.recompute=" + point.recompute,
      "checkpoint.every_steps=0",
      "checkpoint.save_at_end=false",
      fmt::format("limits.max_steps={}", study.warmup_steps + study.steps)};
  for (auto& assignment : grid_assignments(point.grid)) set.push_back(std::move(assignment));
  return set;
}

std::vector<std::string> score_assignments(const StudyConfig& study, const SweepPoint& point) {
  config::RunConfig base, told;
  Problems problems;
  RunConfigText(base, problems).read(study.base, study.base_text);
  std::vector<std::string> set = grid_assignments(point.grid);
  for (const auto& change : changed_fields(told, base)) {
    const std::string block = change.path.substr(0, change.path.find('.'));
    const bool is_set_above = change.path == "parallel.tensor" ||
                              change.path == "parallel.context" || change.path == "parallel.data" ||
                              change.path == "batching.sharing";
    if (!is_set_above && (block == "parallel" || block == "numerics" || block == "batching" ||
                          block == "threads_per_rank"))
      set.push_back(change.path + "=" + change.now);
  }
  return set;
}

std::string run_config_text(const StudyConfig& study, const std::vector<std::string>& assignments) {
  config::RunConfig config;
  Problems problems;
  RunConfigText text(config, problems);
  for (const auto& assignment : assignments) text.set(assignment);
  problems.throw_if_any<ConfigError>();
  return study.base_text + "\n# What the study sets:\n" + config_text(config);
}

}  // namespace coppice
