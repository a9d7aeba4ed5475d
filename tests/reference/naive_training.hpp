#pragma once
// Forward and backward of the whole model in double over packed rows with an explicit mask, put
// together from the naive ops. Whatever a program keeps in memory between its ops (weights,
// activations, their gradients) passes through one function, so that the same loops are the exact
// answer and, with that function rounding, the plain method in a small type.
#include <functional>
#include <map>
#include <string>

#include "model/model_config.hpp"
#include "reference/naive_layers.hpp"
#include "reference/naive_logprob.hpp"

namespace coppice::reference {

/// Logits, their statistics and gradients of weights are not rounded: programs keep them wider.
struct NaiveTraining {
  ModelConfig config;                      // default rope only
  std::map<std::string, Numbers> weights;  // by Hugging Face name, row major
  std::function<double(double)> stored;    // what memory makes of a number

  struct Rows {
    std::vector<std::int32_t> tokens, positions;
    std::vector<std::vector<int>> mask;  // [T][T]
    std::vector<LogprobEdge> edges;
  };
  struct Coefficients {
    Numbers c, e;  // of each edge
  };
  struct Result {
    Logprobs scores;
    std::map<std::string, Numbers> gradients;
  };
  /// `coefficients` is the loss: what it makes of the scores is the gradient by each.
  Result run(const Rows& rows, double temperature,
             const std::function<Coefficients(const Logprobs&)>& coefficients) const;
};

}  // namespace coppice::reference
