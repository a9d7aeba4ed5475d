#pragma once
// The whole model in double, one sequence at a time, written from the papers in plain loops: no
// packing, no forest, no shared prefix, nothing of the program but the config's numbers. It is slow
// and says what log-probs and entropies are.
#include <map>
#include <string>
#include <vector>

#include "model/model_config.hpp"

namespace coppice::reference {

struct NaiveModel {
  ModelConfig config;                                  // default and linear rope only
  std::map<std::string, std::vector<double>> weights;  // by Hugging Face name, row major

  struct Scores {
    std::vector<double> logprobs, entropies;  // [i]: of token i + 1 given tokens 0..i
  };
  Scores score(const std::vector<std::int32_t>& tokens, double temperature) const;
};

}  // namespace coppice::reference
