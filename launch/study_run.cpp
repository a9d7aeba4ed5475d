#include "launch/study_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "checkpoint/pending_file.hpp"
#include "launch/cluster_shape.hpp"
#include "launch/host.hpp"
#include "launch/run_config.hpp"
#include "launch/study_figures.hpp"
#include "launch/study_rollouts.hpp"
#include "model/flops.hpp"
#include "rl/trainer_config.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr int kKilled = 128 + 9;

// What a run of this program, the C++ library or the driver says when memory runs out.
bool tells_of_no_memory(const std::string& error) {
  for (const char* words : {"no memory for", "has no memory left", "bad_alloc", "out of memory",
                            "oom_kill", "oom-kill"})
    if (error.find(words) != error.npos) return true;
  return false;
}

// Recorded in place of a child's figures where it has failed.
void record_failure(const ChildEnd& end, const fs::path& log, StudyRecord& record) {
  record.error = error_in_log(log);
  if (record.error.empty() || end.status == kKilled)
    record.error =
        end.status > 128
            ? fmt::format(
                  "ended by signal {}{}", end.status - 128,
                  end.status == kKilled ? ", as the system does when memory runs out." : ".")
            : fmt::format("ended with status {} and said nothing.", end.status);
  record.status = end.status == kKilled || tells_of_no_memory(record.error)
                      ? study_status::kOutOfMemory
                      : study_status::kFailed;
}

// A directory of its own for each run: what a dead study's last child still writes goes nowhere.
class RunPlace {
 public:
  explicit RunPlace(const fs::path& work) {
    std::string name = (work / "run.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw IoError(fmt::format("{} cannot be made: {}.", name, std::strerror(errno)));
    path_ = name;
  }
  ~RunPlace() {
    std::error_code ignored;  // a destructor has nobody to tell
    fs::remove_all(path_, ignored);
  }
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void remove_places_of_dead_studies(const fs::path& work) {
  std::error_code ignored;  // they are in nobody's way
  std::vector<fs::path> places;
  for (const auto& entry : fs::directory_iterator(work, ignored))
    if (entry.path().filename().string().starts_with("run.")) places.push_back(entry.path());
  for (const auto& place : places) fs::remove_all(place, ignored);
}

}  // namespace

StudyRunner::StudyRunner(const StudyConfig& config, std::vector<StudyModel> models,
                         std::optional<ClusterProfile> cluster, const Launcher& launcher,
                         std::function<bool()> stop_requested)
    : config_(config),
      models_(std::move(models)),
      cluster_(std::move(cluster)),
      launcher_(launcher),
      stop_requested_(std::move(stop_requested)),
      work_(config.out_dir / "work"),
      points_(points_of(models_.size(), config.sweep)),
      runs_(runs_of(points_, config.repetitions)) {}

std::vector<std::string> StudyRunner::model_names() const {
  std::vector<std::string> names;
  if (models_.size() > 1)
    for (const auto& model : models_) names.push_back(model.name);
  return names;
}

ChildEnd StudyRunner::coppice(const std::vector<std::string>& arguments, int ranks,
                              const fs::path& log) const {
  return run_child(launcher_.words(ranks, arguments), log, stop_requested_);
}

// False: told to stop.
bool StudyRunner::make_model(std::size_t model) {
  const fs::path file = work_ / fmt::format("model_{}.h5", model), log = work_ / "model.log";
  if (!fs::exists(file)) {  // a model file appears whole or not at all
    const auto arguments =
        config_.model_configs.empty()
            ? std::vector<std::string>{"import", "--hf", config_.model_hf, "--out", file.string()}
            : std::vector<std::string>{"init",
                                       "--hf-config",
                                       config_.model_configs[model],
                                       "--seed",
                                       std::to_string(config_.seed),
                                       "--out",
                                       file.string()};
    const ChildEnd end = coppice(arguments, 1, log);
    if (end.stopped) return false;
    if (end.status != 0)
      throw Error(fmt::format("the model of {} cannot be made: {}", models_[model].name,
                              error_in_log(log)));
    fs::remove(log);
  }
  checkpoints_.push_back(file.string());
  return true;
}

bool StudyRunner::make_models() {
  checkpoints_.clear();
  if (!config_.model_checkpoint.empty()) {
    checkpoints_.push_back(config_.model_checkpoint);
    return true;
  }
  for (std::size_t model = 0; model < models_.size(); ++model)
    if (!make_model(model)) return false;
  return true;
}

StudyRunFiles StudyRunner::prepare_groups(const SweepPoint& point) {
  StudyRunFiles files;
  files.model_checkpoint = checkpoints_.at(point.model);
  const std::int64_t steps = config_.warmup_steps + config_.steps;
  if (!config_.rollouts.empty()) {
    files.rollouts = config_.rollouts;
    if (recorded_groups_ == 0) recorded_groups_ = std::ssize(read_rollouts(config_.rollouts, {}));
    const std::int64_t each = config_.groups_per_step;
    const std::int64_t steps_of_epoch = (recorded_groups_ + each - 1) / each;
    files.epochs = (steps + steps_of_epoch - 1) / steps_of_epoch;
    return files;
  }
  files.rollouts = (work_ / "rollouts.jsonl").string();
  files.epochs = steps;
  const auto groups =
      random_groups(point, config_.groups_per_step, models_.at(point.model).config.vocab_size,
                    config_.seed, config_.has_kl ? WithRefLogprobs::kYes : WithRefLogprobs::kNo);
  write_rollouts(files.rollouts, groups);
  return files;
}

// Adds the predictions to the record. A refusal is the run's to tell.
void StudyRunner::plan_point(const std::vector<std::string>& assignments, const SweepPoint& point,
                             StudyRecord& record) {
  try {
    const RunConfig config =
        load_run_config(config_.base, assignments, RunConfigUse::kPlan, config_.job);
    const ModelConfig& model = models_.at(point.model).config;
    auto groups = read_rollouts(config.rollouts, training_needs(config.trainer.loss, model));
    check_row_budget(groups, config.trainer.batching);
    // Once through the groups: what follows is the same again.
    RolloutsSource source(std::move(groups), /*epochs=*/1, config.shuffle, config.trainer.seed);
    const SourcePosition start = source.position();
    const StepBatch batch(source.take(config.trainer.groups_per_step), config.trainer.loss,
                          config.trainer.advantage);
    source.set_position(start);
    const bool has_links = cluster_ && (config.grid.ranks() <= cluster_->ranks_per_node ||
                                        cluster_->between_nodes.bandwidth > 0);
    if (has_links && config.precision != DType::kF64)
      record.figures.emplace_back("predicted_step_seconds",
                                  predict_step(config, model, batch, *cluster_).step_seconds);
    const RunPlan plan = plan_run(config, model, source);
    const std::int64_t memory = plan.memory.total();
    record.figures.emplace_back("predicted_memory_bytes", static_cast<double>(memory));
    record.figures.emplace_back("predicted_speedup", plan.predicted_speedup);
    const double limit = static_cast<double>(memory_limit_bytes());
    const double needed = static_cast<double>(memory) * point.grid.ranks();
    if (launcher_.is_local() && config.device == DeviceKind::kCpu && needed > limit) {
      record.status = study_status::kOutOfMemory;
      record.error =
          fmt::format("not run: it needs {:.3g} GB by its plan, and this machine has {:.3g} GB.",
                      needed / 1e9, limit / 1e9);
    }
  } catch (const InputError&) {
    record.figures.clear();
  }
}

bool StudyRunner::is_compared(const StudyRun& run) const {
  const SweepPoint& point = points_[run.point];
  const auto& sharing = config_.sweep.sharing;
  if (!config_.compare_logprobs || run.repetition != 0 || point.sharing != "GROUPED" ||
      std::find(sharing.begin(), sharing.end(), "REPEATED") == sharing.end())
    return false;
  return std::none_of(points_.begin(), points_.begin() + static_cast<std::ptrdiff_t>(run.point),
                      [&](const SweepPoint& earlier) {
                        return same_groups(earlier, point) && earlier.sharing == "GROUPED";
                      });
}

// False: told to stop.
bool StudyRunner::compare_logprobs(const SweepPoint& point, const StudyRunFiles& files,
                                   const fs::path& place, StudyFigures& figures,
                                   Progress& progress) {
  for (const std::string sharing : {"grouped", "repeated"}) {
    std::vector<std::string> arguments = {
        "score",        "--checkpoint", files.model_checkpoint,       "--rollouts",
        files.rollouts, "--out",        place / (sharing + ".jsonl"), "--sharing",
        sharing,        "--device",     config_.score_device};
    for (const auto& assignment : score_assignments(config_, point))
      arguments.insert(arguments.end(), {"--set", assignment});
    const fs::path log = place / "score.log";
    const ChildEnd end = coppice(arguments, point.grid.ranks(), log);
    if (end.stopped) return false;
    if (end.status == 0) continue;
    progress.note(fmt::format("{}: log-probs could not be compared: {}", description_of(point),
                              error_in_log(log)));
    return true;
  }
  figures.emplace_back("logprob_difference",
                       logprob_difference(place / "grouped.jsonl", place / "repeated.jsonl"));
  return true;
}

// False: told to stop; nothing of the run is left.
bool StudyRunner::run_point(const StudyRun& run, StudyRecords& records, Progress& progress) {
  const SweepPoint& point = points_[run.point];
  const auto begin = std::chrono::steady_clock::now();
  const RunPlace place(work_);
  StudyRunFiles files = prepare_groups(point);
  files.run_dir = place.path() / "run";
  const auto assignments = run_assignments(config_, point, files);
  StudyRecord record{run, "", "", {}};
  plan_point(assignments, point, record);
  if (record.status.empty()) {
    const fs::path config = place.path() / "run.textproto", log = place.path() / "log";
    write_file_atomically(config, run_config_text(config_, assignments));
    const ChildEnd end = coppice({"train", "--config", config.string()}, point.grid.ranks(), log);
    if (end.stopped) return false;
    if (end.status != 0) {
      record_failure(end, log, record);
    } else {
      try {
        auto figures = figures_of_run(fs::path(files.run_dir) / "metrics.jsonl",
                                      config_.warmup_steps, config_.steps);
        if (is_compared(run) && !compare_logprobs(point, files, place.path(), figures, progress))
          return false;
        figures.insert(figures.end(), record.figures.begin(), record.figures.end());
        record.figures = std::move(figures);
        record.status = study_status::kOk;
      } catch (const DataError& error) {
        record.status = study_status::kFailed;
        record.error = error.problems().front();
      }
    }
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  weight_ += weight_of(point);
  std::string text = description_of(point);
  if (const auto seconds = record.figure("step_seconds"))
    text += fmt::format("  {:.3g} s a step", *seconds);
  else
    text += fmt::format("  {}: {}", record.status, record.error);
  records.append(std::move(record));
  progress.update(static_cast<std::int64_t>(done(records)), text, seconds_left(records));
  return true;
}

// What a run takes, in FLOPs: its steps, and its start as a guess.
double StudyRunner::weight_of(const SweepPoint& point) const {
  constexpr double kStart = 2e10;
  if (point.prefix_length == 0) return kStart;
  const auto work = point.sharing == "REPEATED" ? repeated_work : grouped_work;
  const double step =
      executed_flops(models_[point.model].config,
                     work(point.prefix_length, point.response_length, point.group_size));
  return kStart + step * static_cast<double>(config_.groups_per_step *
                                             (config_.warmup_steps + config_.steps));
}

double StudyRunner::seconds_left(const StudyRecords& records) const {
  double left = 0;
  for (const StudyRun& run : runs_)
    if (!records.has(run) && !records.has_failed(run.point)) left += weight_of(points_[run.point]);
  return left * seconds_ / weight_;
}

std::size_t StudyRunner::done(const StudyRecords& records) const {
  return static_cast<std::size_t>(std::count_if(
      runs_.begin(), runs_.end(),
      [&](const StudyRun& run) { return records.has(run) || records.has_failed(run.point); }));
}

bool StudyRunner::run(StudyRecords& records) {
  if (done(records) == all()) return true;
  fs::create_directories(work_);
  remove_places_of_dead_studies(work_);
  remove_leftovers(work_);
  if (!make_models()) return false;
  Progress progress("point", static_cast<std::int64_t>(all()),
                    static_cast<std::int64_t>(done(records)));
  for (const StudyRun& run : runs_) {
    if (stop_requested_()) return false;
    if (records.has(run) || records.has_failed(run.point)) continue;
    std::optional<double> left;
    if (weight_ > 0) left = seconds_left(records);
    progress.show(static_cast<std::int64_t>(done(records)), description_of(points_[run.point]),
                  left);
    if (!run_point(run, records, progress)) return false;
  }
  return true;
}

}  // namespace coppice
