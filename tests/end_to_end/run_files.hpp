#pragma once
// What end-to-end tests put before the program and read from what it leaves: rollouts, metrics,
// tensors of checkpoints and golden files.
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace coppice::test {

/// Values by name, in double.
using Tensors = std::map<std::string, std::vector<double>>;

/// Directory of a golden case.
std::string golden_case(const std::string& name);
std::vector<std::string> golden_case_names();

/// Every tensor of a safetensors file whose name begins with `prefix`, named without it.
Tensors safetensors_values(const std::string& path, const std::string& prefix);
/// Every dataset of a checkpoint whose path begins with `prefix`, named without it.
Tensors checkpoint_values(const std::string& path, const std::string& prefix = "/parameters/");

/// L2 norm of the difference over all tensors. Names and sizes must agree.
double distance(const Tensors& a, const Tensors& b);
/// distance(a, b) / distance(b, start)
double distance_over_moved(const Tensors& a, const Tensors& b, const Tensors& start);

/// The same names and sizes.
Tensors zeros_like(const Tensors& tensors);

/// One object per line.
std::vector<nlohmann::json> json_lines(const std::string& path);

struct RolloutShape {
  int groups = 4, responses = 4;
  int longest_prompt = 12, longest_response = 9;
  int vocab_size = 61;
};
/// Seeded random groups with ragged lengths, an empty response and distinct rewards.
std::string random_rollouts(const RolloutShape& shape, std::uint64_t seed = 1);

/// The metrics of a step without what depends on the clock or the process.
nlohmann::json without_times(nlohmann::json step);

}  // namespace coppice::test
