#pragma once
// Which process grids are possible: for a number of ranks, and for a model. The two are apart
// because the model's file is read only after the config.
#include <cstdint>
#include <string>
#include <vector>

#include "launch/run_config_text.hpp"
#include "model/model_config.hpp"

namespace coppice::config {
class Parallel;
}

namespace coppice {

/// Adds every problem of a grid for `ranks` ranks; 0: for as many as it asks for.
void check_grid(const config::Parallel& parallel, RunConfigText& text, std::int64_t ranks);

/// Ranks of the data axis that tensor and context leave; what is given where something is.
std::int64_t data_ranks(const config::Parallel& parallel, std::int64_t ranks);

/// Sizes of the tensor axis that the model allows, ascending.
std::vector<std::int64_t> tensor_sizes(const ModelConfig& model);

/// Why the model does not allow `tensor` ranks, one line each, beginning with `place`; none where
/// it does.
std::vector<std::string> tensor_problems(const ModelConfig& model, std::int64_t tensor,
                                         const std::string& place);

}  // namespace coppice
