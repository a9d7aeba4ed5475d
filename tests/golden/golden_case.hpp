#pragma once
// One directory of tests/golden, read: what goes into a run and what transformers says comes out.
// tools/make_golden.py describes the files.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model_config.hpp"
#include "rl/rollouts.hpp"
#include "rl/trainer_config.hpp"

namespace coppice::test {

using NamedValues = std::map<std::string, std::vector<double>>;

/// Tensors whose names begin with `prefix`, which is cut off, of any stored float type.
NamedValues safetensors_values(const std::filesystem::path& directory, const std::string& file,
                               const std::string& prefix);

struct GoldenCase {
  explicit GoldenCase(const std::string& name);

  std::filesystem::path directory;
  ModelConfig model;
  NamedValues weights;  // by Hugging Face name
  TrainerConfig trainer;
  std::vector<Group> groups;
  nlohmann::json expected;  // expected.json
};

std::vector<std::string> golden_case_names();

}  // namespace coppice::test
