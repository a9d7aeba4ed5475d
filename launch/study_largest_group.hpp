#pragma once
// The largest group that fits a memory budget, by the code of `coppice plan`: nothing is run.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/study_run.hpp"

namespace coppice {

/// One line of JSON for every combination of the study's sweep without its group sizes: the sweep's
/// values, memory_budget_bytes, largest_group_size (0: not even one response fits) and
/// predicted_memory_bytes of it (of one response where none fits). One group is a step and runs in
/// one micro-batch, whatever base's row budget, grouped and repeated alike; with `bounded` true the
/// search ended at 4096 responses or 2^22 rows before the budget did. `error` stands in place of
/// the figures where the model takes no such lengths. Nothing: it was told to stop.
///
/// Errors    ConfigError where base does not load
std::optional<std::string> largest_groups(const StudyConfig& config,
                                          const std::vector<StudyModel>& models,
                                          const std::vector<std::string>& model_names,
                                          const std::function<bool()>& stop_requested);

}  // namespace coppice
