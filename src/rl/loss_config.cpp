#include "rl/loss_config.hpp"

#include "core/error.hpp"

namespace coppice {

const LossTraits& traits_of(LossKind kind) {
  using enum Aggregation;
  using enum AdvantageNormalization;
  // GRPO: arXiv:2402.03300. DAPO: arXiv:2503.14476. Dr. GRPO: arXiv:2503.20783.
  static constexpr LossTraits kGrpo{"GRPO", true, true, 0.2, kSequenceMeanTokenMean, kStd};
  static constexpr LossTraits kDapo{"DAPO", true, true, 0.28, kTokenMean, kStd};
  static constexpr LossTraits kDrGrpo{"DR_GRPO", true, true, 0.2, kSequenceMeanTokenSumNorm, kNone};
  static constexpr LossTraits kSft{"SFT", false, true, 0.2, kTokenMean, kNone};
  switch (kind) {
    case LossKind::kGrpo:
      return kGrpo;
    case LossKind::kDapo:
      return kDapo;
    case LossKind::kDrGrpo:
      return kDrGrpo;
    case LossKind::kSft:
      return kSft;
  }
  throw ContractError(fmt::format("loss kind {} is unknown", static_cast<int>(kind)));
}

LossConfig default_loss(LossKind kind) {
  const LossTraits& traits = traits_of(kind);
  return {.kind = kind, .clip_high = traits.clip_high, .aggregation = traits.aggregation};
}

AdvantageConfig default_advantage(LossKind kind) {
  return {.normalization = traits_of(kind).normalization};
}

}  // namespace coppice
