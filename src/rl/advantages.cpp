#include "rl/advantages.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace coppice {

bool has_zero_spread(std::span<const double> rewards) {
  if (rewards.empty()) return true;
  const auto [low, high] = std::minmax_element(rewards.begin(), rewards.end());
  return *low == *high;
}

std::vector<double> group_advantages(std::span<const double> rewards,
                                     const AdvantageConfig& config) {
  std::vector<double> advantages(rewards.size(), 0.0);
  // Equal rewards may differ from their rounded mean; they must not learn from that.
  if (has_zero_spread(rewards)) return advantages;
  const auto count = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
  double divisor = 1.0;
  if (config.normalization == AdvantageNormalization::kStd) {
    double squares = 0.0;
    for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
    divisor = std::sqrt(squares / (count - 1.0)) + config.epsilon;
  }
  std::transform(rewards.begin(), rewards.end(), advantages.begin(),
                 [&](double reward) { return (reward - mean) / divisor; });
  return advantages;
}

}  // namespace coppice
