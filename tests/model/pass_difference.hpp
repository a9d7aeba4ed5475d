#pragma once
// How far two passes over the same tokens are apart, in the measures that docs/testing.md bounds.
#include "model/tiny_models.hpp"

namespace coppice::test {

struct PassDifference {
  double largest_logprob = 0;  ///< absolute, of log-probs and entropies
  double mean_logprob = 0;     ///< absolute, of log-probs
  /// Of the worst parameter: norm of the difference over max(its norm, whole norm sqrt(n_p / n)).
  double worst_gradient = 0;
  double whole_gradient = 0;  ///< relative, all parameters as one vector
};

PassDifference difference(const PassResult& a, const PassResult& b);

}  // namespace coppice::test
