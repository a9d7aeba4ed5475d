#pragma once
// The figures of one run of a study, out of the metrics and scores that its children have written.
#include <cstdint>
#include <filesystem>
#include <string>

#include "launch/study_records.hpp"

namespace coppice {

/// All of one step. Behind `warmup_steps` steps, `steps` are measured: times are their medians,
/// counters their means, peaks their largest. `loss`, `grad_norm` and `advantage_abs_mean` are of
/// the run's very first step, where all runs of a study have the same weights.
///
/// Errors    DataError where the file is not that of so many steps, or one of them was skipped
StudyFigures figures_of_run(const std::filesystem::path& metrics, std::int64_t warmup_steps,
                            std::int64_t steps);

/// The largest difference between two files of scores of the same groups, over all log-probs.
///
/// Errors    DataError where they are not of the same groups
double logprob_difference(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace coppice
