#pragma once
// The rope part of a config.json, in its old and its new spelling, as a RopeConfig.
#include "layers/rope_config.hpp"
#include "model/config_fields.hpp"

namespace coppice {

/// Old: rope_theta beside rope_scaling {type or rope_type, ...}. New: rope_parameters {rope_type,
/// rope_theta, ...}. Problems go to `fields.problems()`; types other than default, linear, llama3
/// and yarn are refused by name.
RopeConfig parse_rope(const ConfigFields& fields, std::int64_t max_position_embeddings);

}  // namespace coppice
