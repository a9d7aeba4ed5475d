#pragma once
// Advantages of a group's responses from their rewards. Which responses learn does not matter here:
// the statistics take all of them.
#include <span>
#include <vector>

#include "rl/loss_config.hpp"

namespace coppice {

/// True if all rewards are the same number, as read.
bool has_zero_spread(std::span<const double> rewards);

/// A = (R - mean) / (std + epsilon) with the unbiased std, or A = R - mean without normalization.
/// Exactly 0 for one response and for zero spread.
///
/// Source    DeepSeekMath, arXiv:2402.03300; without std: Dr. GRPO, arXiv:2503.20783
std::vector<double> group_advantages(std::span<const double> rewards,
                                     const AdvantageConfig& config);

}  // namespace coppice
