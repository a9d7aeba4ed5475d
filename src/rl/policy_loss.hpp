#pragma once
// Policy losses as two numbers per token: c = dL/d logprob and e = dL/d entropy. The head's
// backward knows nothing else of a loss. Everything here is double and pure; advantages and weights
// are made elsewhere (advantages.hpp, and below for the weights).
#include <cstdint>
#include <limits>
#include <span>

#include "rl/loss_config.hpp"

namespace coppice {

/// One response's figures per token. Where loss_mask is 0 the others are never looked at.
///
/// Shapes    all [tokens], or empty where it says so
struct ResponseSpans {
  std::span<const double> logprobs;      ///< natural logarithms, current policy
  std::span<const double> entropies;     ///< nats
  std::span<const double> old_logprobs;  ///< empty: on policy, the ratio is exactly 1
  std::span<const double> ref_logprobs;  ///< empty: no KL
  std::span<const double> advantages;    ///< empty: the loss uses none
  std::span<const std::uint8_t> loss_mask;
  double weight = 0.0;  ///< w_t of every token in the loss
};

/// Sums for the metrics. Added in a fixed order they are the same whatever the micro-batches were.
struct LossSums {
  double loss = 0.0;         ///< sum of w (policy + kl_coef KL - entropy_coef H)
  double policy_loss = 0.0;  ///< sum of w policy
  double kl = 0.0;           ///< plain sums over tokens in the loss from here on
  double entropy = 0.0;
  double ratio = 0.0;
  double ratio_max = -std::numeric_limits<double>::infinity();
  std::int64_t tokens = 0;
  std::int64_t kl_tokens = 0;  ///< tokens that have a reference
  std::int64_t clipped = 0;    ///< tokens whose policy coefficient is zero because of clipping

  void add(const LossSums& other);
};

/// Coefficients and sums of one response (or, for a token-local loss, of any of its tokens).
///
/// Shapes    c, e [tokens]
/// Effects   overwrites c and e (0 where the mask is 0), adds to sums
/// Errors    ContractError if lengths disagree, or a span that the loss needs is empty
/// Source    math.md section 4; GRPO arXiv:2402.03300, dual clip arXiv:1912.09729, KL estimators
///           Schulman 2020, "Approximating KL divergence"
/// Oracle    tests/rl/policy_loss_test.cpp, CoefficientsEqualFiniteDifferences
void policy_loss(const LossConfig& config, const ResponseSpans& response, std::span<double> c,
                 std::span<double> e, LossSums& sums);

/// Denominators of a global batch: over all micro-batches and ranks, from the same mask as the
/// numerators, known before anything is split.
struct BatchTotals {
  std::int64_t tokens = 0;     ///< sum of loss_mask
  std::int64_t sequences = 0;  ///< responses with at least one token in the loss

  void count(std::int64_t response_loss_tokens) {
    tokens += response_loss_tokens;
    sequences += response_loss_tokens > 0;
  }
};

/// The aggregation weight of every token in the loss of a response that has `loss_tokens` of them;
/// 0 for a response without.
double token_weight(const LossConfig& config, const BatchTotals& totals, std::int64_t loss_tokens);

}  // namespace coppice
