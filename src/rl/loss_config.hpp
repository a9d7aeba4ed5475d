#pragma once
// What a policy loss can be told, and what each kind of loss takes where it is not told. The kinds
// are names for sets of defaults; the formulas know only the fields.
#include <cstdint>
#include <string_view>

namespace coppice {

enum class LossKind { kGrpo, kDrGrpo, kDapo, kSft };
enum class KlEstimator { kK1, kK2, kK3 };
enum class Aggregation { kTokenMean, kSequenceMeanTokenMean, kSequenceMeanTokenSumNorm };
enum class AdvantageNormalization { kStd, kNone };

struct LossConfig {
  LossKind kind = LossKind::kGrpo;
  double clip_low = 0.2;   ///< ratios below 1 - clip_low gain nothing more
  double clip_high = 0.2;  ///< ratios above 1 + clip_high gain nothing more
  double dual_clip = 0.0;  ///< > 1: bound of the ratio where the advantage is negative; 0: off
  KlEstimator kl_estimator = KlEstimator::kK3;
  double kl_coef = 0.0;
  double entropy_coef = 0.0;
  Aggregation aggregation = Aggregation::kSequenceMeanTokenMean;
  double temperature = 1.0;  ///< divides the logits for log-probs and entropy
  std::int64_t updates_per_batch = 1;
  std::int64_t max_response_length = 0;  ///< the divisor of kSequenceMeanTokenSumNorm
  bool mask_truncated = false;           ///< acted on where rollouts are read
};

struct AdvantageConfig {
  AdvantageNormalization normalization = AdvantageNormalization::kStd;
  double epsilon = 1e-6;
  bool drop_zero_std_groups = false;
};

/// What a kind of loss is, beyond the defaults below.
struct LossTraits {
  std::string_view name;                 ///< as in the run config
  bool uses_advantages;                  ///< else rewards, ratio and clip do not apply
  bool token_local;                      ///< a token's coefficients depend on that token alone
  double clip_high;                      ///< default
  Aggregation aggregation;               ///< default
  AdvantageNormalization normalization;  ///< default
};

const LossTraits& traits_of(LossKind kind);

/// The loss of a kind with nothing else told.
LossConfig default_loss(LossKind kind);
AdvantageConfig default_advantage(LossKind kind);

}  // namespace coppice
