#include "rl/policy_loss.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace coppice {
namespace {

// Log-ratios beyond this are held: exp(20) is 5e8, far outside any trust region.
constexpr double kLargestLogRatio = 20.0;

struct PolicyTerm {
  double value;  // policy_t
  double c;      // d policy_t / d logprob
  double ratio;
  bool clipped;
};

PolicyTerm clipped_policy(const LossConfig& config, double logprob, double old_logprob,
                          double advantage) {
  const double log_ratio = logprob - old_logprob;
  // Written so that NaN passes through and shows in the loss.
  const bool held = std::abs(log_ratio) > kLargestLogRatio;
  const double ratio = std::exp(held ? std::copysign(kLargestLogRatio, log_ratio) : log_ratio);
  if (advantage == 0.0) return {0.0 * ratio, 0.0, ratio, false};  // never "clipped"

  double bounded = ratio;
  if (advantage > 0.0) {
    bounded = std::min(ratio, 1.0 + config.clip_high);
  } else {
    bounded = std::max(ratio, 1.0 - config.clip_low);
    if (config.dual_clip > 0.0) bounded = std::min(bounded, config.dual_clip);
  }
  // A ratio at its bound still has its slope; one beyond has none.
  const bool clipped = held || bounded != ratio;
  if (std::isnan(ratio)) return {ratio, ratio, ratio, false};
  return {-advantage * bounded, clipped ? 0.0 : -advantage * ratio, ratio, clipped};
}

struct KlTerm {
  double value;
  double slope;  // d KL / d logprob
};

KlTerm kl_term(KlEstimator estimator, double logprob, double ref_logprob) {
  const double d = ref_logprob - logprob;
  switch (estimator) {
    case KlEstimator::kK1:
      return {-d, 1.0};
    case KlEstimator::kK2:
      return {0.5 * d * d, -d};
    case KlEstimator::kK3: {
      const double held = std::clamp(d, -kLargestLogRatio, kLargestLogRatio);
      return {std::exp(held) - held - 1.0, held == d ? 1.0 - std::exp(d) : std::isnan(d) ? d : 0.0};
    }
  }
  throw ContractError(fmt::format("KL estimator {} is unknown", static_cast<int>(estimator)));
}

void check_spans(const LossConfig& config, const ResponseSpans& r, std::size_t c, std::size_t e) {
  const std::size_t tokens = r.loss_mask.size();
  const auto fits = [&](std::span<const double> span) {
    return span.empty() || span.size() == tokens;
  };
  COPPICE_CHECK(
      r.logprobs.size() == tokens && r.entropies.size() == tokens && c == tokens && e == tokens,
      "{} tokens, but {} logprobs, {} entropies, {} c, {} e", tokens, r.logprobs.size(),
      r.entropies.size(), c, e);
  COPPICE_CHECK(fits(r.old_logprobs) && fits(r.ref_logprobs) && fits(r.advantages),
                "{} tokens, but {} old_logprobs, {} ref_logprobs, {} advantages", tokens,
                r.old_logprobs.size(), r.ref_logprobs.size(), r.advantages.size());
  const bool learns = std::find(r.loss_mask.begin(), r.loss_mask.end(), 1) != r.loss_mask.end();
  COPPICE_CHECK(!learns || !traits_of(config.kind).uses_advantages || !r.advantages.empty(),
                "loss {} needs advantages", traits_of(config.kind).name);
  COPPICE_CHECK(!learns || config.kl_coef == 0.0 || !r.ref_logprobs.empty(),
                "kl_coef = {} needs ref_logprobs", config.kl_coef);
}

}  // namespace

void LossSums::add(const LossSums& other) {
  loss += other.loss;
  policy_loss += other.policy_loss;
  kl += other.kl;
  entropy += other.entropy;
  ratio += other.ratio;
  ratio_max = std::max(ratio_max, other.ratio_max);
  tokens += other.tokens;
  kl_tokens += other.kl_tokens;
  clipped += other.clipped;
}

void policy_loss(const LossConfig& config, const ResponseSpans& response, std::span<double> c,
                 std::span<double> e, LossSums& sums) {
  check_spans(config, response, c.size(), e.size());
  const bool uses_advantages = traits_of(config.kind).uses_advantages;
  const auto estimator = config.kl_coef != 0.0 ? config.kl_estimator : KlEstimator::kK3;
  const double w = response.weight;
  for (std::size_t t = 0; t < response.loss_mask.size(); ++t) {
    // Select before anything is computed: what stands at a masked token must not change a bit.
    if (response.loss_mask[t] == 0) {
      c[t] = e[t] = 0.0;
      continue;
    }
    const double logprob = response.logprobs[t];
    const double entropy = response.entropies[t];
    PolicyTerm policy{-logprob, -1.0, 1.0, false};  // supervised
    if (uses_advantages)
      policy = clipped_policy(config, logprob,
                              response.old_logprobs.empty() ? logprob : response.old_logprobs[t],
                              response.advantages[t]);
    double value = policy.value;
    c[t] = policy.c * w;
    e[t] = 0.0;
    if (!response.ref_logprobs.empty()) {
      const KlTerm kl = kl_term(estimator, logprob, response.ref_logprobs[t]);
      sums.kl += kl.value;
      ++sums.kl_tokens;
      if (config.kl_coef != 0.0) {
        value += config.kl_coef * kl.value;
        c[t] += w * config.kl_coef * kl.slope;
      }
    }
    if (config.entropy_coef != 0.0) {
      value -= config.entropy_coef * entropy;
      e[t] = -config.entropy_coef * w;
    }
    sums.loss += w * value;
    sums.policy_loss += w * policy.value;
    sums.entropy += entropy;
    sums.ratio += policy.ratio;
    sums.ratio_max = std::max(sums.ratio_max, policy.ratio);
    sums.clipped += policy.clipped;
    ++sums.tokens;
  }
}

double token_weight(const LossConfig& config, const BatchTotals& totals, std::int64_t loss_tokens) {
  if (loss_tokens == 0) return 0.0;
  const auto sequences = static_cast<double>(totals.sequences);
  switch (config.aggregation) {
    case Aggregation::kTokenMean:
      return 1.0 / static_cast<double>(totals.tokens);
    case Aggregation::kSequenceMeanTokenMean:
      return 1.0 / (sequences * static_cast<double>(loss_tokens));
    case Aggregation::kSequenceMeanTokenSumNorm:
      COPPICE_CHECK(config.max_response_length > 0, "max_response_length = {}",
                    config.max_response_length);
      return 1.0 / (sequences * static_cast<double>(config.max_response_length));
  }
  throw ContractError(
      fmt::format("aggregation {} is unknown", static_cast<int>(config.aggregation)));
}

}  // namespace coppice
