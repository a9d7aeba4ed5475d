#include "device/trained_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "core/copy.hpp"
#include "model/memory_plan.hpp"
#include "optim/grad_norm.hpp"

namespace coppice::bench {

ModelConfig ModelShape::config(std::int64_t layers) const {
  const nlohmann::json json{{"architectures", {family + "ForCausalLM"}},
                            {"hidden_size", hidden},
                            {"intermediate_size", intermediate},
                            {"num_hidden_layers", layers},
                            {"num_attention_heads", heads},
                            {"num_key_value_heads", kv_heads},
                            {"head_dim", head_dim},
                            {"vocab_size", vocab},
                            {"max_position_embeddings", 65536},
                            {"rms_norm_eps", 1e-6},
                            {"rope_theta", 1e6},
                            {"hidden_act", "silu"},
                            {"tie_word_embeddings", tied},
                            {"initializer_range", 0.02}};
  return ModelConfig::parse(json.dump(), name);
}

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "NONE";
    case Recompute::kSelective:
      return "SELECTIVE";
    case Recompute::kBlock:
      return "BLOCK";
  }
  return "";
}

Recompute recompute_that_fits(const ModelConfig& config, std::int64_t device_bytes,
                              const std::vector<const PackedBatch*>& batches) {
  for (const auto recompute : {Recompute::kNone, Recompute::kSelective}) {
    MemoryPlanner planner(config, DType::kBF16, PassKind::kTrain, recompute, 1);
    for (const PackedBatch* batch : batches) planner.add(*batch);
    auto bytes = 18 * parameter_count(config);
    for (const auto& line : planner.plan().lines) {
      if (line.name == "activations" || line.name == "scratch") bytes += line.bytes;
    }
    if (bytes < device_bytes / 10 * 9) return recompute;
  }
  return Recompute::kBlock;
}

TrainedModel::TrainedModel(const ModelConfig& config)
    : model_(config, ParallelContext{*self_, *self_, *self_}, DType::kBF16, run_.memory,
             WithGradients::kYes) {
  const auto parameters = model_.parameters();
  std::uint64_t seed = 100;
  for (Parameter* parameter : parameters) {
    if (parameter->value.shape().rank() == 1) {  // a norm
      const std::vector<float> ones(static_cast<std::size_t>(parameter->value.numel()), 1);
      copy(run_.stream, host_view(ones.data(), parameter->value.shape()), parameter->weights());
    } else {
      const auto columns = static_cast<double>(parameter->value.shape()[1]);
      Numbers(++seed, 1 / std::sqrt(columns)).fill(run_, parameter->weights());
    }
    round_master(run_.ctx, *parameter);
  }
  adamw_ = std::make_unique<AdamW>(AdamWConfig{}, parameters, run_.memory);
  run_.stream.synchronize();
}

void TrainedModel::pass(const PackedBatch& batch, Recompute recompute) {
  const auto edges = batch.edges.size();
  logprobs_.assign(edges, 0);
  std::vector<double> entropies(edges);
  model_.zero_gradients(run_.ctx);
  // On policy: ratio 1, so c = -A w. Advantages alternate in sign.
  const auto coefficients = [&](std::int64_t first, std::span<const double>,
                                std::span<const double>, std::span<double> c, std::span<double>) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      const auto& edge = batch.edges[static_cast<std::size_t>(first) + i];
      c[i] = (edge.response % 2 == 0 ? -1.0 : 1.0) / static_cast<double>(edges);
    }
  };
  model_.forward_backward(run_.ctx, batch, recompute, 1.0, coefficients, logprobs_, entropies);
}

double TrainedModel::update() {
  const auto parameters = model_.parameters();
  const double norm = global_grad_norm(run_.ctx, parameters);
  adamw_->step(run_.ctx, 1e-6, clip_scale(norm, 1.0));
  return norm;
}

StepSeconds TrainedModel::time(const PackedBatch& batch, Recompute recompute, double sample) {
  double norm = 0;
  StepSeconds seconds;
  seconds.pass = median_seconds(
      run_, [&] { pass(batch, recompute); }, sample);
  seconds.update = median_seconds(
      run_, [&] { norm = update(); }, sample);
  const double sum = std::accumulate(logprobs_.begin(), logprobs_.end(), norm);
  if (!std::isfinite(sum) || norm == 0) {
    throw std::runtime_error(
        fmt::format("log-probs add up to {} with a gradient of norm {}", sum, norm));
  }
  return seconds;
}

std::vector<double> TrainedModel::logprobs(const PackedBatch& batch) {
  std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
  model_.score(run_.ctx, batch, 1.0, logprobs, entropies);
  std::vector<std::size_t> order(logprobs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const auto& edge = batch.edges[i];
    return std::tuple(edge.group, edge.response, edge.offset);
  };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
  std::vector<double> sorted;
  for (const auto i : order) sorted.push_back(logprobs[i]);
  return sorted;
}

Apart check_apart(const ModelConfig& config, const std::vector<double>& a,
                  const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) {
    throw std::runtime_error(fmt::format("{} log-probs against {}", a.size(), b.size()));
  }
  Apart apart;
  double mean = 0, squares = 0;
  const auto count = static_cast<double>(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    apart.rms += difference * difference / count;
    apart.most = std::max(apart.most, difference);
    mean += a[i] / count, squares += a[i] * a[i] / count;
  }
  apart.rms = std::sqrt(apart.rms);
  // A row meets about eight roundings to bf16 a layer on either side, each of 2^-9 of it at most,
  // and what they make of logits is that share of how far logits spread.
  const auto roundings = 2.0 * 8.0 * static_cast<double>(config.num_hidden_layers + 1);
  const double spread = std::sqrt(std::max(0.0, squares - mean * mean));
  apart.bound = 2 * 0x1p-9 * std::sqrt(roundings) * spread;
  if (!(apart.rms <= apart.bound)) {
    throw std::runtime_error(fmt::format(
        "log-probs are {:.3g} apart (root mean square, bound {:.3g})", apart.rms, apart.bound));
  }
  // Random logits of this spread: the mean is -ln V - spread^2 / 2.
  const double expected = -std::log(static_cast<double>(config.vocab_size)) - spread * spread / 2;
  if (!(std::abs(mean - expected) < 0.5 + spread)) {
    throw std::runtime_error(
        fmt::format("log-probs of random weights are {:.3f} on average and not "
                    "about {:.3f}",
                    mean, expected));
  }
  return apart;
}

}  // namespace coppice::bench
