#pragma once
// What a study config must satisfy beyond its schema, apart from its base and its models: ranges,
// required fields, files that exist, values that stand twice.
#include <cstdint>

#include "launch/run_config_text.hpp"
#include "launch/study_sweep.hpp"

namespace coppice::config {
class StudyConfig;
}

namespace coppice {

/// Adds every problem of `config`, which `text` has read.
void check_study_config(const config::StudyConfig& config, RunConfigText& text);

/// Adds a problem where the sweep, whose values are in range, is more than a study can be.
void check_study_size(const StudySweep& sweep, std::size_t models, std::int64_t groups_per_step,
                      RunConfigText& text);

}  // namespace coppice
