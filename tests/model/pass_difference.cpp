#include "model/pass_difference.hpp"

#include <algorithm>
#include <cmath>

namespace coppice::test {
namespace {

double squared_norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

PassDifference difference(const PassResult& a, const PassResult& b) {
  COPPICE_CHECK(a.logprobs.size() == b.logprobs.size() && a.gradients.size() == b.gradients.size(),
                "passes over {} and {} edges compared", a.logprobs.size(), b.logprobs.size());
  PassDifference result;
  for (const auto& [key, value] : a.logprobs) {
    const double of_logprob = std::abs(value - b.logprobs.at(key));
    const double of_entropy = std::abs(a.entropies.at(key) - b.entropies.at(key));
    result.largest_logprob = std::max({result.largest_logprob, of_logprob, of_entropy});
    result.mean_logprob += of_logprob / static_cast<double>(a.logprobs.size());
  }
  double whole = 0, whole_difference = 0, elements = 0;
  for (const auto& [name, gradient] : b.gradients) {
    whole += squared_norm(gradient);
    elements += static_cast<double>(gradient.size());
  }
  for (const auto& [name, gradient] : b.gradients) {
    const double apart = squared_distance(a.gradients.at(name), gradient);
    whole_difference += apart;
    const double share = whole * static_cast<double>(gradient.size()) / elements;
    const double allowed = std::max(squared_norm(gradient), share);
    result.worst_gradient = std::max(result.worst_gradient, std::sqrt(apart / allowed));
  }
  result.whole_gradient = std::sqrt(whole_difference / whole);
  return result;
}

}  // namespace coppice::test
