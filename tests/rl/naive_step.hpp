#pragma once
// A GRPO training step of a tiny model by its formula, in double or with memory that rounds, and
// the batches on which a trainer on a CUDA device, of one rank or several, is held against it.
#include <map>
#include <string>
#include <vector>

#include "rl/training_run.hpp"

namespace coppice::test {

using Gradients = std::map<std::string, std::vector<double>>;  // by Hugging Face name

inline constexpr std::int64_t kStepVocabulary = 151;

TrainerConfig step_config(Sharing sharing);

/// Two groups of a vocabulary of kStepVocabulary, others for each `draw`: 63 rows with shared
/// prompts, 101 without. Old and reference log-probs lie around the tiny model's own, inside the
/// clip range and outside, none near its ends; advantages are random.
std::vector<Group> recorded_groups(const TinyCase& tiny, int draw);

struct NaiveStep {
  double loss = 0;
  Gradients gradients;
};

/// Holds steps of bf16 models against the same in double, and their errors against those of the
/// plain loops when memory holds bf16. One loss may be right by luck, so losses are held together.
class StepErrors {
 public:
  /// `trained`: the step of the tiny model on recorded_groups(tiny, draw). Expects its whole
  /// gradient's error to be at most twice the plain one.
  void add(const TinyCase& tiny, int draw, bool grouped, const NaiveStep& trained);
  /// Expects the same of the losses' errors, by their root mean squares.
  void expect_right_losses() const;

 private:
  double squares_ = 0, plain_squares_ = 0;
};

}  // namespace coppice::test
