#pragma once
// A study while it runs: its models, then one run of a point after the other as a child of this
// program, each recorded when it has ended.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/child_process.hpp"
#include "launch/cluster_profile.hpp"
#include "launch/progress.hpp"
#include "launch/run_plan.hpp"
#include "launch/study_config.hpp"
#include "launch/study_records.hpp"
#include "model/model_config.hpp"

namespace coppice {

/// A model of a study: what its file says, read before anything is done.
struct StudyModel {
  std::string name;  ///< as the config names it
  ModelConfig config;
};

class StudyRunner {
 public:
  /// `out_dir` exists and is held. `stop_requested` is asked again and again.
  StudyRunner(const StudyConfig& config, std::vector<StudyModel> models,
              std::optional<ClusterProfile> cluster, const Launcher& launcher,
              std::function<bool()> stop_requested);

  /// What points and records name models by: nothing where there is one.
  std::vector<std::string> model_names() const;
  const std::vector<SweepPoint>& points() const { return points_; }

  /// Does what is not recorded yet. False: it was told to stop.
  ///
  /// Effects   appends to `records`; writes below out_dir/work
  /// Errors    Error where a model cannot be made; IoError
  bool run(StudyRecords& records);

  /// Runs of `records` and those that are left out behind a failure, of all runs.
  std::size_t done(const StudyRecords& records) const;
  std::size_t all() const { return runs_.size(); }

 private:
  bool make_models();
  bool make_model(std::size_t model);
  bool run_point(const StudyRun& run, StudyRecords& records, Progress& progress);
  bool compare_logprobs(const SweepPoint& point, const StudyRunFiles& files,
                        const std::filesystem::path& place, StudyFigures& figures,
                        Progress& progress);
  void plan_point(const std::vector<std::string>& assignments, const SweepPoint& point,
                  StudyRecord& record);
  StudyRunFiles prepare_groups(const SweepPoint& point);
  bool is_compared(const StudyRun& run) const;
  double seconds_left(const StudyRecords& records) const;
  double weight_of(const SweepPoint& point) const;
  ChildEnd coppice(const std::vector<std::string>& arguments, int ranks,
                   const std::filesystem::path& log) const;

  const StudyConfig& config_;
  std::vector<StudyModel> models_;
  std::optional<ClusterProfile> cluster_;
  const Launcher& launcher_;
  std::function<bool()> stop_requested_;
  std::filesystem::path work_;
  std::vector<SweepPoint> points_;
  std::vector<StudyRun> runs_;
  std::vector<std::string> checkpoints_;  // of models_
  std::int64_t recorded_groups_ = 0;      // in a rollouts file
  double seconds_ = 0, weight_ = 0;       // of the runs done here
};

}  // namespace coppice
