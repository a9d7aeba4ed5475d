#include "launch/study_largest_group.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launch/run_config.hpp"
#include "launch/study_rollouts.hpp"

namespace coppice {
namespace {

constexpr std::int64_t kMostResponses = 4096, kMostRows = std::int64_t{1} << 22;

// Bytes of the fullest rank with groups of so many responses.
class PlannedMemory {
 public:
  PlannedMemory(const StudyConfig& study, const StudyModel& model, SweepPoint point)
      : study_(study), model_(model.config), point_(std::move(point)) {
    StudyRunFiles files;  // any file will do where none is read
    files.run_dir = (study.out_dir / "run").string();
    files.model_checkpoint = study.base;
    files.rollouts = study.base;
    auto set = run_assignments(study, point_, files);
    set.push_back(fmt::format("batching.max_rows_per_microbatch={}", kMostRows));
    config_ = load_run_config(study.base, set, RunConfigUse::kPlan, study.job);
  }

  std::int64_t of(std::int64_t group_size) {
    point_.group_size = group_size;
    RolloutsSource source(
        random_groups(point_, 1, model_.vocab_size, study_.seed,
                      study_.has_kl ? WithRefLogprobs::kYes : WithRefLogprobs::kNo),
        /*epochs=*/1, /*shuffle=*/false, /*seed=*/1);
    return plan_run(config_, model_, source).memory.total();
  }

 private:
  const StudyConfig& study_;
  const ModelConfig& model_;
  SweepPoint point_;
  RunConfig config_;
};

// Responses that the search goes up to.
std::int64_t bound_of(const SweepPoint& point) {
  const std::int64_t each =
      point.response_length + (point.sharing == "REPEATED" ? point.prefix_length : 0);
  const std::int64_t shared = point.sharing == "REPEATED" ? 0 : point.prefix_length;
  return std::clamp<std::int64_t>((kMostRows - shared) / each, 1, kMostResponses);
}

std::string searched(const StudyConfig& study, const StudyModel& model, const SweepPoint& point,
                     const std::function<bool()>& stop_requested) {
  const std::int64_t budget = study.memory_budget_bytes, bound = bound_of(point);
  const std::int64_t length = point.prefix_length + point.response_length;
  std::string text = fmt::format("\"memory_budget_bytes\":{}", budget);
  if (length > model.config.max_position_embeddings)
    return text +
           fmt::format(",\"error\":\"{} tokens are more than the {} positions of the model\"",
                       length, model.config.max_position_embeddings);
  PlannedMemory memory(study, model, point);
  std::int64_t fits = 0, bytes = memory.of(1), beyond = bound + 1;
  if (bytes <= budget) {
    fits = 1;
    while (fits < bound) {  // doubled, then halved
      if (stop_requested()) return {};
      const std::int64_t next = beyond > bound ? std::min(2 * fits, bound) : (fits + beyond) / 2;
      if (next == fits) break;
      if (const std::int64_t needed = memory.of(next); needed <= budget) {
        fits = next;
        bytes = needed;
      } else {
        beyond = next;
      }
    }
  }
  text += fmt::format(",\"largest_group_size\":{},\"predicted_memory_bytes\":{}", fits, bytes);
  return fits == bound ? text + ",\"bounded\":true" : text;
}

}  // namespace

std::optional<std::string> largest_groups(const StudyConfig& config,
                                          const std::vector<StudyModel>& models,
                                          const std::vector<std::string>& model_names,
                                          const std::function<bool()>& stop_requested) {
  StudySweep sweep = config.sweep;
  sweep.group_size = {1};
  std::string lines;
  for (const SweepPoint& point : points_of(models.size(), sweep)) {
    const std::string found = searched(config, models[point.model], point, stop_requested);
    if (stop_requested()) return std::nullopt;
    lines +=
        fmt::format("{{{},{}}}\n", json_keys_of(point, model_names, WithGroupSize::kNo), found);
  }
  return lines;
}

}  // namespace coppice
