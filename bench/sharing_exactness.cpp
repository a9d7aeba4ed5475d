// How far a real model's grouped run is from its repeated one: log-probs and the gradient of every
// parameter, on recorded rollouts, beside the bounds that the project sets itself. It prints
// figures; the same comparison on tiny models, which fails when it should, is in tests/model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <map>

#include "checkpoint/safetensors.hpp"
#include "core/convert.hpp"
#include "rl/advantages.hpp"
#include "rl/scorer.hpp"
#include "rl/step_batch.hpp"
#include "rl/trainer_config.hpp"

namespace coppice {
namespace {

struct Pass {
  std::vector<double> logprobs;                         // by group, response, token
  std::map<std::string, std::vector<float>> gradients;  // by parameter
  std::int64_t rows = 0;
};

void load(PolicyModel& model, const std::filesystem::path& directory) {
  const SafetensorsModel stored(directory);
  for (Parameter* parameter : model.parameters()) {
    for (const ParameterPart& part : parameter->parts) {
      const auto& source = stored.tensors().at(part.name);
      const TensorView values = rows_of(part, parameter->value);
      std::vector<std::byte> bytes(static_cast<std::size_t>(source.entry->bytes));
      source.read(0, bytes);
      float* to = values.data<float>();
      const bool bf16 = source.entry->dtype == "BF16";
      COPPICE_CHECK(bf16 || source.entry->dtype == "F32", "{} has type {}", part.name,
                    source.entry->dtype);
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        if (bf16) {
          to[i] = to_f32(reinterpret_cast<const BF16*>(bytes.data())[i]);
        } else {
          to[i] = reinterpret_cast<const float*>(bytes.data())[i];
        }
      }
    }
  }
}

Pass run(ExecContext& ctx, PolicyModel& model, const StepBatch& batch, const LossConfig& loss,
         const BatchingConfig& batching) {
  Pass pass;
  std::map<std::array<std::int32_t, 3>, double> logprobs_by_edge;
  model.zero_gradients(ctx);
  const auto plan = plan_microbatches(batch.groups(), batching, EdgeTokens::kInLoss,
                                      packing_cost(model.config()));
  for (const auto& microbatch : plan.microbatches) {
    const PackedBatch packed = pack(batch.groups(), microbatch, EdgeTokens::kInLoss);
    std::vector<double> logprobs(packed.edges.size()), entropies(packed.edges.size());
    model.forward_backward(ctx, packed, Recompute::kBlock, loss.temperature,
                           batch.coefficients(packed), logprobs, entropies);
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
      const auto& edge = packed.edges[i];
      logprobs_by_edge[{edge.group, edge.response, edge.offset}] = logprobs[i];
    }
    pass.rows += packed.rows();
  }
  for (const auto& [edge, logprob] : logprobs_by_edge) pass.logprobs.push_back(logprob);
  for (const Parameter* parameter : model.parameters()) {
    const auto* data = ConstTensorView(parameter->grad).data<float>();
    pass.gradients[parameter->name].assign(data, data + parameter->grad.numel());
  }
  return pass;
}

double norm(const std::vector<float>& a, const std::vector<float>* minus = nullptr) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double value = static_cast<double>(a[i]) - (minus ? static_cast<double>((*minus)[i]) : 0);
    sum += value * value;
  }
  return std::sqrt(sum);
}

void compare(const Pass& grouped, const Pass& repeated) {
  double most = 0, sum = 0;
  for (std::size_t i = 0; i < grouped.logprobs.size(); ++i) {
    const double difference = std::abs(grouped.logprobs[i] - repeated.logprobs[i]);
    most = std::max(most, difference);
    sum += difference;
  }
  double whole = 0, whole_difference = 0, elements = 0;
  for (const auto& [name, gradient] : repeated.gradients) {
    whole += std::pow(norm(gradient), 2);
    whole_difference += std::pow(norm(gradient, &grouped.gradients.at(name)), 2);
    elements += static_cast<double>(gradient.size());
  }
  double worst = 0;
  std::string worst_name;
  for (const auto& [name, gradient] : repeated.gradients) {
    const double share = std::sqrt(whole * static_cast<double>(gradient.size()) / elements);
    const double relative =
        norm(gradient, &grouped.gradients.at(name)) / std::max(norm(gradient), share);
    if (relative > worst) {
      worst = relative;
      worst_name = name;
    }
  }
  fmt::print("{:40} {:>10} {:>10}\n", "", "found", "bound");
  fmt::print("{:40} {:10.2e} {:>10}\n", "log-probs, largest difference", most, "1e-4");
  fmt::print("{:40} {:10.2e} {:>10}\n", "log-probs, mean difference",
             sum / static_cast<double>(std::max<std::size_t>(1, grouped.logprobs.size())), "1e-5");
  fmt::print("{:40} {:10.2e} {:>10}\n", "whole gradient, relative",
             std::sqrt(whole_difference / whole), "3e-5");
  fmt::print("{:40} {:10.2e} {:>10}  {}\n", "worst parameter, relative", worst, "1e-4", worst_name);
}

int main_of(int argc, char** argv) {
  CLI::App app{"Grouped against repeated on a real model, in f32."};
  std::string hf, rollouts;
  std::size_t group_count = 1, responses = 0;
  int threads = 2;
  std::int64_t max_rows = 2048;
  app.add_option("--hf", hf, "Hugging Face directory")->required();
  app.add_option("--rollouts", rollouts, "rollouts file")->required();
  app.add_option("--groups", group_count, "groups of the file that are taken");
  app.add_option("--responses", responses, "responses of each group that are taken; 0: all");
  app.add_option("--threads", threads, "threads");
  app.add_option("--max-rows", max_rows, "rows of a micro-batch");
  CLI11_PARSE(app, argc, argv);

  std::ifstream in(std::filesystem::path(hf) / "config.json");
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  Memory memory{Device{}};
  Stream stream{Device{}};
  Arena scratch(memory, "scratch");
  ExecContext ctx{stream, memory, scratch, threads};
  const auto self = make_self_communicator();
  const ParallelContext parallel{*self, *self, *self};
  PolicyModel model(ModelConfig::parse(json, "config.json"), parallel, DType::kF32, memory,
                    WithGradients::kYes);
  load(model, hf);

  const LossConfig loss = default_loss(LossKind::kGrpo);
  auto groups = read_rollouts(rollouts, training_needs(loss, model.config()));
  // Groups without spread have no gradient.
  std::vector<Group> taken;
  for (auto& group : groups) {
    if (responses > 0 && group.responses.size() > responses) group.responses.resize(responses);
    std::vector<double> rewards;
    for (const auto& response : group.responses) rewards.push_back(response.reward.value_or(0));
    if (!has_zero_spread(rewards) && taken.size() < group_count) taken.push_back(group);
  }
  const StepBatch batch(std::move(taken), loss, default_advantage(LossKind::kGrpo));
  const Pass grouped = run(ctx, model, batch, loss, {Sharing::kGrouped, max_rows});
  const Pass repeated = run(ctx, model, batch, loss, {Sharing::kRepeated, max_rows});
  fmt::print("{} groups, {} tokens in the loss, {} rows grouped, {} repeated\n",
             batch.groups().size(), grouped.logprobs.size(), grouped.rows, repeated.rows);
  compare(grouped, repeated);
  return 0;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) { return coppice::main_of(argc, argv); }
