#pragma once
// The study config as plain values with every default resolved, and the run configs that a study
// makes of its base. The schema is configs/study_config.proto. Points and their order are
// study_points' business, running them study_command's.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/run_config_check.hpp"
#include "launch/study_sweep.hpp"

namespace coppice {

struct StudyConfig {
  std::filesystem::path out_dir;
  std::string base, rollouts;              ///< rollouts: "" where groups are generated
  std::string cluster;                     ///< "": no time is predicted
  std::vector<std::string> model_configs;  ///< none: base's model
  std::string model_checkpoint, model_hf;  ///< base's, one of them, where it is used
  std::uint64_t seed = 1;
  StudySweep sweep;
  std::int64_t groups_per_step = 1, steps = 3, warmup_steps = 1, repetitions = 3;
  std::int64_t memory_budget_bytes = 0;  ///< 0: no search
  bool compare_logprobs = true;
  bool has_kl = false;  ///< base's loss wants ref_logprobs
  JobSize job;          ///< what this machine offers
  std::string base_text;
  std::string score_device = "auto";  ///< base's device, as `coppice score --device` takes it
  /// How a message about each grid's tensor ranks begins: which are valid shows with the model.
  std::vector<std::string> tensor_places;
  std::string text;  ///< the resolved config, which reads back as this very one

  std::size_t models() const { return std::max<std::size_t>(1, model_configs.size()); }
};

/// Reads a study's config and checks it together with its base, for every grid of the sweep. `job`
/// is what this machine offers.
///
/// Errors    ConfigError with every problem, each with file, line, column and field path
StudyConfig load_study_config(const std::filesystem::path& path, const JobSize& job);

/// What forbids that a study begun with config `before` goes on with `now`: one line for each
/// changed field that may not change. Both are resolved texts; `origin` says where `before` was
/// found.
std::vector<std::string> changes_that_forbid_going_on(const std::string& before,
                                                      const std::string& now,
                                                      const std::string& origin);

/// What the runs of a point are told beyond base.
struct StudyRunFiles {
  std::string run_dir, model_checkpoint, rollouts;
  std::int64_t epochs = 1;  ///< enough for all steps
};
/// As `--set` takes them.
std::vector<std::string> run_assignments(const StudyConfig& study, const SweepPoint& point,
                                         const StudyRunFiles& files);
/// What `coppice score` is told for a point's groups, as base and the point say, but its sharing.
std::vector<std::string> score_assignments(const StudyConfig& study, const SweepPoint& point);
/// A run config: base's text with those assignments behind it.
std::string run_config_text(const StudyConfig& study, const std::vector<std::string>& assignments);

}  // namespace coppice
