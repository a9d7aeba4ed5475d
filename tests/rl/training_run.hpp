#pragma once
// One training run of a tiny model on made-up rollouts, with everything it stands on.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/tiny_models.hpp"
#include "rl/temporary_file.hpp"
#include "rl/trainer.hpp"

namespace coppice::test {

/// The hard shapes of model/tiny_models.hpp as rollouts: ragged groups of 1 to 4 responses, empty
/// and masked ones among them, rewards with spread.
inline std::vector<Group> tiny_rollouts(std::int64_t vocab_size = 61) {
  const RandomStream random(5, "rewards");
  std::vector<Group> groups;
  for (const TinyGroup& tiny : hard_groups(vocab_size)) {
    const auto g = groups.size();
    Group group{fmt::format("g{}", g), tiny.prompt, {}, static_cast<std::int64_t>(g + 1)};
    for (const TinyResponse& from : tiny.responses) {
      Response response;
      response.ids = from.ids;
      response.loss_mask = from.loss_mask;
      if (from.loss_mask.empty()) response.loss_mask.assign(from.ids.size(), 1);
      response.reward = random.uniform(16 * g + group.responses.size());
      group.responses.push_back(std::move(response));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Small steps that move the weights: learning rate 1e-3, two groups a step.
inline TrainerConfig tiny_trainer_config() {
  TrainerConfig config;
  config.groups_per_step = 2;
  config.optimizer.schedule.learning_rate = 1e-3;
  config.batching = {Sharing::kGrouped, 1000};
  return config;
}

struct RunOptions {
  DType dtype = DType::kF64;
  Device device{};
  TinyCase tiny{"Llama", false};
  std::int64_t epochs = 1;
  bool shuffle = false;
  int threads = 1;
};

class TrainingRun {
 public:
  TrainingRun(std::vector<Group> groups, TrainerConfig config, RunOptions options = {},
              const std::filesystem::path* directory = nullptr)
      : model_(config_of(options.tiny), Backend{options.device, options.dtype}, options.threads),
        source_(std::move(groups), options.epochs, options.shuffle, config.seed) {
    config.run_dir = directory != nullptr ? *directory : own_directory_.path();
    run_dir_ = config.run_dir;
    TrainerEvents events;
    events.step_done = [this](const StepMetrics& metrics) { steps_.push_back(metrics); };
    trainer_ = std::make_unique<Trainer>(model_.ctx(), *model_, source_, config, grid_, events);
  }

  Trainer& trainer() { return *trainer_; }
  TinyModel& model() { return model_; }
  RolloutsSource& source() { return source_; }
  const std::filesystem::path& run_dir() const { return run_dir_; }
  /// Of the steps that run() took.
  const std::vector<StepMetrics>& steps() const { return steps_; }

  std::vector<double> weights() { return flat(model_.weights()); }
  std::vector<double> gradients() { return flat(model_.gradients()); }
  std::vector<double> moments() {
    std::vector<double> values;
    for (const StateTensor& tensor : moment_tensors(const_cast<AdamW&>(trainer_->optimizer())))
      for (const double value : values_of(tensor.local)) values.push_back(value);
    return values;
  }

 private:
  static std::vector<double> flat(const std::map<std::string, std::vector<double>>& tensors) {
    std::vector<double> values;
    for (const auto& [name, part] : tensors) values.insert(values.end(), part.begin(), part.end());
    return values;
  }

  TemporaryDirectory own_directory_;
  std::filesystem::path run_dir_;
  TinyModel model_;
  RolloutsSource source_;
  ProcessGrid grid_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<StepMetrics> steps_;
};

inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  COPPICE_CHECK(a.size() == b.size(), "{} values and {}", a.size(), b.size());
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

}  // namespace coppice::test
