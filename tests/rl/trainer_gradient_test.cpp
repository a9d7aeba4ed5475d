// The gradient that a step leaves in the model is the derivative of the loss that it reports: the
// whole way from packing over the model, the head and the loss, against finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "rl/training_run.hpp"

namespace coppice {
namespace {

using test::tiny_rollouts;
using test::tiny_trainer_config;
using test::TrainingRun;

struct Case {
  const char* name;
  LossConfig loss;
  Sharing sharing;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

LossConfig loss_of(LossKind kind, KlEstimator estimator, double temperature) {
  LossConfig loss = default_loss(kind);
  loss.kl_estimator = estimator;
  loss.kl_coef = 0.2;
  loss.entropy_coef = 0.05;
  loss.temperature = temperature;
  loss.max_response_length = 20;
  loss.dual_clip = 3.0;
  return loss;
}

// Rollouts off policy: old and reference log-probs near, but not at, the tiny model's.
std::vector<Group> off_policy_rollouts() {
  const RandomStream random(9, "off policy");
  std::uint64_t draw = 0;
  auto groups = tiny_rollouts();
  for (Group& group : groups)
    for (Response& response : group.responses)
      for (std::size_t t = 0; t < response.ids.size(); ++t) {
        response.old_logprobs.push_back(-5.0 + random.normal(draw++));
        response.ref_logprobs.push_back(-5.0 + random.normal(draw++));
      }
  return groups;
}

class TrainerGradient : public testing::TestWithParam<Case> {};

// Error of a central difference with step 1e-4 and fourth-order correction: far below 1e-7 of the
// gradient's norm. Seen red with half the weight on first tokens, in the coefficients only.
TEST_P(TrainerGradient, IsTheDerivativeOfTheReportedLoss) {
  TrainerConfig config = tiny_trainer_config();
  config.loss = GetParam().loss;
  config.groups_per_step = 4;
  config.batching = {GetParam().sharing, 70};
  config.optimizer.schedule.learning_rate = 0.0;  // the weights stay
  TrainingRun run(off_policy_rollouts(), config, {.epochs = 100000});
  const auto loss = [&] { return *run.trainer().step()->loss; };
  loss();
  const auto gradients = run.model().gradients();
  const auto weights = run.model().weights();
  double norm = 0;
  for (const double g : run.gradients()) norm += g * g;
  norm = std::sqrt(norm);
  ASSERT_GT(norm, 1e-3);

  const RandomStream random(4, "which weights");
  std::uint64_t draw = 0;
  for (const auto& [name, values] : weights) {
    const std::size_t element = random.below(values.size(), draw++);
    const auto at = [&](double step) {
      run.model().set_weight(name, element, values[element] + step);
      return loss();
    };
    constexpr double kStep = 1e-4;
    const double difference =
        (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
    run.model().set_weight(name, element, values[element]);
    EXPECT_NEAR(gradients.at(name)[element], difference, 1e-7 * norm) << name << " " << element;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Losses, TrainerGradient,
    testing::Values(
        Case{"GrpoK2Grouped", loss_of(LossKind::kGrpo, KlEstimator::kK2, 1.0), Sharing::kGrouped},
        Case{"DapoK3Auto", loss_of(LossKind::kDapo, KlEstimator::kK3, 0.7), Sharing::kAuto},
        Case{"DrGrpoK1Repeated", loss_of(LossKind::kDrGrpo, KlEstimator::kK1, 1.0),
             Sharing::kRepeated},
        Case{"SftGrouped", loss_of(LossKind::kSft, KlEstimator::kK3, 1.3), Sharing::kGrouped}),
    [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace coppice
