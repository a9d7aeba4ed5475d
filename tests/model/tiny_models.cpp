#include "model/tiny_models.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/copy.hpp"

namespace coppice::test {
namespace {

template <class F>
void for_each_part(PolicyModel& model, F&& f) {
  for (Parameter* parameter : model.parameters()) {
    for (const ParameterPart& part : parameter->parts) f(*parameter, part);
  }
}

std::map<PassResult::Key, double> by_edge(const PackedBatch& batch,
                                          const std::vector<double>& values) {
  std::map<PassResult::Key, double> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& edge = batch.edges[i];
    result[{edge.group, edge.response, edge.offset}] = values[i];
  }
  return result;
}

struct Segments {
  std::vector<SegmentSpec> specs{};
  std::vector<SegmentTargets> targets{};
  Tokens token_ids{};

  void push(const Tokens& tokens, std::int32_t parent, const SegmentTargets& wanted) {
    specs.push_back({std::ssize(tokens), parent});
    targets.push_back(wanted);
    token_ids.insert(token_ids.end(), tokens.begin(), tokens.end());
  }
  PackedBatch batch() {
    PackedBatch batch;
    const PrefixForest forest(specs);
    batch.positions = forest.positions();
    batch.plan = AttentionPlan(forest);
    batch.edges = prediction_edges(forest, token_ids, targets);
    batch.token_ids = std::move(token_ids);
    return batch;
  }
};

}  // namespace

void PrintTo(const TinyCase& tiny, std::ostream* out) { *out << tiny.name(); }

std::vector<TinyCase> all_tiny_cases() {
  return {{"Llama", false, 4, 2, 6},   {"Llama", true, 3, 1, 8},   {"Qwen2", false, 4, 4, 6},
          {"Qwen2", true, 4, 1, 6},    {"Qwen3", false, 4, 2, 10}, {"Qwen3", true, 3, 1, 4},
          {"Mistral", false, 2, 1, 12}};
}

ModelConfig config_of(const TinyCase& tiny) {
  nlohmann::json config = {{"architectures", {tiny.family + "ForCausalLM"}},
                           {"hidden_size", tiny.hidden},
                           {"intermediate_size", tiny.hidden * 3 / 2},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", tiny.heads},
                           {"num_key_value_heads", tiny.kv_heads},
                           {"head_dim", tiny.head_dim},
                           {"vocab_size", tiny.vocab_size},
                           {"max_position_embeddings", 256},
                           {"rms_norm_eps", 1e-5},
                           {"tie_word_embeddings", tiny.tied}};
  if (tiny.family == "Mistral") config["sliding_window"] = nullptr;
  return ModelConfig::parse(config.dump(), "config.json");
}

TinyModel::TinyModel(const ModelConfig& config, DType dtype, int threads, WithGradients gradients)
    : TinyModel(config, {Device{}, dtype}, threads, gradients) {}

TinyModel::TinyModel(const ModelConfig& config, const Backend& backend, int threads,
                     WithGradients gradients)
    : context_(backend.device, threads),
      model_(config, parallel_, backend.dtype, context_.memory(), gradients) {
  // Parts of a parameter come one by one, and put rounds all of it.
  for (Parameter* parameter : model_.parameters()) set_zero(ctx().stream, parameter->weights());
  for_each_part(model_, [&](Parameter& parameter, const ParameterPart& part) {
    const RandomStream stream(7, part.name);
    // Wider than a fresh model's, so that attention and softmax are far from uniform.
    const bool norm = part.name.ends_with("norm.weight");
    const double matrix = 0.3 * std::sqrt(24.0 / static_cast<double>(config.hidden_size));
    const double scale = part.name.ends_with(".bias") ? 0.5 : norm ? 0.2 : matrix;
    std::vector<double> values(static_cast<std::size_t>(part.shard.local_shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((norm ? 1 : 0) + scale * stream.normal(i));
    }
    put(parameter, part, values);
  });
}

void TinyModel::put(Parameter& parameter, const ParameterPart& part,
                    const std::vector<double>& values) {
  const TensorView weights = rows_of(part, parameter.weights());
  TestContext host;
  copy(ctx().stream, host.from(weights.dtype(), weights.shape(), values), weights);
  round_master(ctx(), parameter);
}

std::map<std::string, std::vector<double>> TinyModel::weights() {
  std::map<std::string, std::vector<double>> weights;
  for_each_part(model_, [&](Parameter& parameter, const ParameterPart& part) {
    weights[part.name] = values_of(rows_of(part, parameter.weights()));
  });
  return weights;
}

std::map<std::string, std::vector<double>> TinyModel::gradients() {
  std::map<std::string, std::vector<double>> gradients;
  for_each_part(model_, [&](Parameter& parameter, const ParameterPart& part) {
    gradients[part.name] = values_of(rows_of(part, parameter.grad));
  });
  return gradients;
}

reference::NaiveModel TinyModel::naive() { return {model_.config(), weights()}; }

void TinyModel::set_weight(const std::string& name, std::size_t element, double value) {
  for_each_part(model_, [&](Parameter& parameter, const ParameterPart& part) {
    if (part.name != name) return;
    auto values = values_of(rows_of(part, parameter.weights()));
    values[element] = value;
    put(parameter, part, values);
  });
}

void TinyModel::set_weights(const std::map<std::string, std::vector<double>>& weights) {
  for_each_part(model_, [&](Parameter& parameter, const ParameterPart& part) {
    put(parameter, part, weights.at(part.name));
  });
}

PackedBatch grouped(const std::vector<TinyGroup>& groups) {
  Segments segments;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto prefix = static_cast<std::int32_t>(segments.specs.size());
    segments.push(groups[g].prompt, -1, {});
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      const TinyResponse& response = groups[g].responses[r];
      segments.push(response.ids, prefix,
                    {.group = static_cast<std::int32_t>(g),
                     .response = static_cast<std::int32_t>(r),
                     .first_target = 0,
                     .is_target = response.loss_mask});
    }
  }
  return segments.batch();
}

PackedBatch repeated(const std::vector<TinyGroup>& groups) {
  Segments segments;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      const TinyResponse& response = groups[g].responses[r];
      Tokens path = groups[g].prompt;
      path.insert(path.end(), response.ids.begin(), response.ids.end());
      segments.push(path, -1,
                    {.group = static_cast<std::int32_t>(g),
                     .response = static_cast<std::int32_t>(r),
                     .first_target = std::ssize(groups[g].prompt),
                     .is_target = response.loss_mask});
    }
  }
  return segments.batch();
}

std::pair<double, double> coefficients_of(const PredictionEdge& edge) {
  const RandomStream stream(3, fmt::format("{} {} {}", edge.group, edge.response, edge.offset));
  return {stream.normal(0), stream.normal(1)};
}

PassResult run_pass(TinyModel& model, const PackedBatch& batch, const PassOptions& options) {
  const auto count = batch.edges.size();
  std::vector<double> logprobs(count), entropies(count), all_c(count), all_e(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::tie(all_c[i], all_e[i]) = options.coefficients ? options.coefficients(batch.edges[i])
                                                        : coefficients_of(batch.edges[i]);
  }
  model->zero_gradients(model.ctx());
  if (options.fused) {
    const EdgeCoefficients coefficients = [&](std::int64_t first, std::span<const double>,
                                              std::span<const double>, std::span<double> c,
                                              std::span<double> e) {
      std::copy_n(all_c.begin() + first, c.size(), c.begin());
      std::copy_n(all_e.begin() + first, e.size(), e.begin());
    };
    model->forward_backward(model.ctx(), batch, options.recompute, options.temperature,
                            coefficients, logprobs, entropies);
  } else {
    PolicyModel::Activations acts(model.memory());
    model->forward(model.ctx(), batch, options.recompute, acts);
    model->head_forward(model.ctx(), acts, options.temperature, logprobs, entropies);
    model->head_backward(model.ctx(), acts, options.temperature, all_c, all_e);
    model->backward(model.ctx(), batch, acts);
  }
  return {by_edge(batch, logprobs), by_edge(batch, entropies), model.gradients()};
}

std::vector<TinyGroup> hard_groups(std::int64_t vocab_size) {
  const auto tokens = [&](const std::string& name, std::int64_t count) {
    const RandomStream stream(11, name);
    Tokens ids;
    for (std::int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<std::int32_t>(
          stream.below(static_cast<std::uint64_t>(vocab_size), static_cast<std::uint64_t>(i))));
    }
    return ids;
  };
  std::vector<TinyGroup> groups(4);
  groups[0] = {tokens("p0", 17), {{tokens("r00", 5)}, {{}}, {{9}}, {tokens("r03", 13)}}};
  // Every response starts with the same token; one of them is that token alone, repeated.
  groups[1] = {tokens("p1", 1), {{{4, 4, 4, 4}}, {{4, 7}}, {{4, 0, 2, 1, 30, 4, 5}}}};
  groups[2] = {tokens("p2", 31), {{tokens("r20", 7), {1, 1, 0, 0, 1, 1, 0}}, {{3, 5}, {0, 0}}}};
  groups[3] = {groups[0].prompt, {{tokens("r30", 3)}}};
  return groups;
}

}  // namespace coppice::test
