#pragma once
// table.csv: what a study's records come to, one row for each point.
#include <filesystem>
#include <string>
#include <vector>

#include "launch/study_records.hpp"

namespace coppice {

/// The table as text, RFC 4180 but for its line ends. Figures are medians over repetitions. A row
/// that is compared with the same point REPEATED has
///
///   speedup               its step_seconds over ours
///   loss_difference       |ours - its| / max(|ours|, |its|, advantage_abs_mean): the loss of an
///                         on-policy step is zero but for rounding, so the size of its terms is
///                         taken for the measure where that is larger
///   grad_norm_difference  |ours - its| / max(|ours|, |its|)
///   logprob_difference    the largest of a log-prob, of these groups, whatever the grid
///
/// A figure that is not there leaves its field empty.
std::string study_csv(const std::vector<SweepPoint>& points, const std::vector<std::string>& models,
                      const std::vector<StudyRecord>& records);

}  // namespace coppice
