#pragma once
// Log-probabilities, entropies and their gradients written from math.md section 3 of the design, in
// double, one row and one vocabulary entry at a time.
#include <cstdint>
#include <vector>

namespace coppice::reference {

using Numbers = std::vector<double>;

/// Row `row` of the logits predicts `target`.
struct LogprobEdge {
  std::int64_t row;
  std::int32_t target;
};

struct Logprobs {
  Numbers logprobs, entropies;  // per edge
};

/// logits [rows][vocab]; a logit of -inf is an entry that does not exist.
Logprobs logprobs(const Numbers& logits, std::int64_t vocab, const std::vector<LogprobEdge>& edges,
                  double temperature);

/// d logits of sum over edges of c logprob + e entropy.
Numbers logprob_gradient(const Numbers& logits, std::int64_t vocab,
                         const std::vector<LogprobEdge>& edges, double temperature,
                         const Numbers& c, const Numbers& e);

}  // namespace coppice::reference
