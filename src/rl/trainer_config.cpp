#include "rl/trainer_config.hpp"

namespace coppice {

RolloutNeeds scoring_needs(const ModelConfig& model) {
  return {.vocab_size = model.vocab_size, .max_positions = model.max_position_embeddings};
}

RolloutNeeds training_needs(const LossConfig& loss, const ModelConfig& model) {
  RolloutNeeds needs = scoring_needs(model);
  const bool uses_advantages = traits_of(loss.kind).uses_advantages;
  needs.rewards = uses_advantages;
  needs.old_values = uses_advantages;
  needs.advantage_values = uses_advantages;
  needs.ref_logprobs = loss.kl_coef > 0.0;
  needs.ref_values = true;  // the metric kl takes them even where no KL enters the loss
  needs.mask_truncated = loss.mask_truncated;
  return needs;
}

}  // namespace coppice
