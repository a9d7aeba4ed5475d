#include "golden/golden_case.hpp"

#include <algorithm>

#include "checkpoint/safetensors.hpp"
#include "core/convert.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {
namespace {

namespace fs = std::filesystem;

fs::path golden_directory() { return fs::path(COPPICE_SOURCE_DIR) / "tests" / "golden"; }

template <class T>
std::vector<double> converted(const std::vector<std::byte>& bytes) {
  const auto* begin = reinterpret_cast<const T*>(bytes.data());
  std::vector<double> values;
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      values.push_back(static_cast<double>(begin[i]));
    } else {
      values.push_back(static_cast<double>(to_f32(begin[i])));
    }
  }
  return values;
}

std::vector<double> values_of_entry(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
  if (!bytes.empty()) file.read(entry, 0, bytes);
  if (entry.dtype == "F64") return converted<double>(bytes);
  if (entry.dtype == "F32") return converted<float>(bytes);
  if (entry.dtype == "BF16") return converted<BF16>(bytes);
  COPPICE_CHECK(entry.dtype == "F16", "{} has type {}", entry.name, entry.dtype);
  return converted<F16>(bytes);
}

// expected.json's run is resolved: every field of the blocks that matter is there.
TrainerConfig trainer_of(const nlohmann::json& run) {
  TrainerConfig config;
  const auto& loss = run.at("loss");
  const std::map<std::string, LossKind> kinds{{"GRPO", LossKind::kGrpo},
                                              {"DR_GRPO", LossKind::kDrGrpo},
                                              {"DAPO", LossKind::kDapo},
                                              {"SFT", LossKind::kSft}};
  const std::map<std::string, KlEstimator> estimators{
      {"K1", KlEstimator::kK1}, {"K2", KlEstimator::kK2}, {"K3", KlEstimator::kK3}};
  const std::map<std::string, Aggregation> aggregations{
      {"TOKEN_MEAN", Aggregation::kTokenMean},
      {"SEQUENCE_MEAN_TOKEN_MEAN", Aggregation::kSequenceMeanTokenMean},
      {"SEQUENCE_MEAN_TOKEN_SUM_NORM", Aggregation::kSequenceMeanTokenSumNorm}};
  LossConfig& to = config.loss;
  to.kind = kinds.at(loss.at("kind"));
  to.clip_low = loss.value("clip_low", to.clip_low);
  to.clip_high = loss.value("clip_high", to.clip_high);
  to.dual_clip = loss.value("dual_clip", to.dual_clip);
  to.kl_estimator = estimators.at(loss.value("kl_estimator", "K3"));
  to.kl_coef = loss.at("kl_coef");
  to.entropy_coef = loss.at("entropy_coef");
  to.aggregation = aggregations.at(loss.at("aggregation"));
  to.temperature = loss.at("temperature");
  to.max_response_length = loss.value("max_response_length", std::int64_t{0});
  to.mask_truncated = loss.at("mask_truncated");
  if (run.contains("advantage")) {
    config.advantage.normalization = run["advantage"].at("normalization") == "STD"
                                         ? AdvantageNormalization::kStd
                                         : AdvantageNormalization::kNone;
    config.advantage.epsilon = run["advantage"].at("epsilon");
  }
  const auto& optimizer = run.at("optimizer");
  config.optimizer.adamw = {optimizer.at("beta1"), optimizer.at("beta2"), optimizer.at("epsilon"),
                            optimizer.at("weight_decay")};
  config.optimizer.max_grad_norm = optimizer.at("max_grad_norm");
  const std::map<std::string, LrScheduleKind> schedules{{"CONSTANT", LrScheduleKind::kConstant},
                                                        {"COSINE", LrScheduleKind::kCosine},
                                                        {"LINEAR", LrScheduleKind::kLinear}};
  config.optimizer.schedule = {schedules.at(optimizer.at("schedule")),
                               optimizer.at("learning_rate"), optimizer.at("warmup_steps"),
                               optimizer.value("total_steps", std::int64_t{0})};
  config.groups_per_step = run.at("data").at("groups_per_step");
  return config;
}

}  // namespace

NamedValues safetensors_values(const fs::path& directory, const std::string& file,
                               const std::string& prefix) {
  NamedValues values;
  const SafetensorsFile opened(directory / file);
  for (const auto& entry : opened.entries()) {
    if (!entry.name.starts_with(prefix)) continue;
    values[entry.name.substr(prefix.size())] = values_of_entry(opened, entry);
  }
  return values;
}

GoldenCase::GoldenCase(const std::string& name)
    : directory(golden_directory() / name),
      model(ModelConfig::parse(read_file(directory / "config.json"), "config.json")),
      expected(nlohmann::json::parse(read_file(directory / "expected.json"))) {
  const SafetensorsModel stored(directory);
  for (const auto& [tensor, source] : stored.tensors()) {
    weights[tensor] = values_of_entry(*source.file, *source.entry);
  }
  trainer = trainer_of(expected.at("run"));
  groups = read_rollouts(directory / "rollouts.jsonl", training_needs(trainer.loss, model));
}

std::vector<std::string> golden_case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_directory())) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace coppice::test
