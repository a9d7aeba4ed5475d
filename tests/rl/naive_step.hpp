#pragma once
// A GRPO training step of a tiny model by its formula, in double or with memory that rounds, and
// the batches on which a trainer on a CUDA device is held against it.
#include <map>
#include <string>
#include <vector>

#include "reference/naive_training.hpp"
#include "rl/training_run.hpp"

namespace coppice::test {

using Gradients = std::map<std::string, std::vector<double>>;  // by Hugging Face name

inline constexpr std::int64_t kStepVocabulary = 151;

/// Two groups of a vocabulary of kStepVocabulary: 63 rows with shared prompts, 101 without. Others
/// for each `draw`.
std::vector<Group> two_groups(int draw);

/// Gives the groups old and reference log-probs around the model's own, inside the clip range and
/// outside, none near its ends, and advantages.
void record(const reference::NaiveTraining& model, std::vector<Group>& groups);

struct NaiveStep {
  double loss = 0;
  Gradients gradients;
};
/// Of recorded groups, with the loss of step_config().
NaiveStep naive_step(const reference::NaiveTraining& model, const std::vector<Group>& groups,
                     bool grouped);
TrainerConfig step_config(Sharing sharing);

/// What memory makes of a number.
double exact(double value);
double in_bf16(double value);

/// Relative difference of all gradients together.
double of_whole(const Gradients& a, const Gradients& exact);

}  // namespace coppice::test
