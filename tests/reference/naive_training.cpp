// See the header. Every intermediate keeps the name that it has in the layers' papers.
#include "reference/naive_training.hpp"

#include <cmath>
#include <vector>

#include "reference/naive_attention.hpp"

namespace coppice::reference {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// One block's activations, as its backward needs them.
struct Kept {
  Numbers x, normed, q_raw, k_raw, middle, mlp_normed, gate_up, hidden;
  AttentionProblem attention;
  Numbers out;
};

class Pass {
 public:
  Pass(const NaiveTraining& model, const NaiveTraining::Rows& rows)
      : model_(model), config_(model.config), rows_(rows) {
    for (std::int64_t i = 0; i < config_.head_dim / 2; ++i) {
      frequencies_.push_back(
          std::pow(config_.rope.theta,
                   -2.0 * static_cast<double>(i) / static_cast<double>(config_.head_dim)));
    }
  }

  NaiveTraining::Result run(
      double temperature,
      const std::function<NaiveTraining::Coefficients(const Logprobs&)>& coefficients) {
    const auto hidden = config_.hidden_size, vocab = config_.vocab_size;
    const Numbers embedding = weight("model.embed_tokens.weight");
    Numbers x;
    for (const auto token : rows_.tokens) {
      for (std::int64_t i = 0; i < hidden; ++i) x.push_back(embedding[at(token * hidden + i)]);
    }
    std::vector<Kept> kept;
    for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      x = forward(layer, x, kept.emplace_back());
    }
    const std::string head =
        config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    const Numbers gamma = weight("model.norm.weight");
    const Numbers normed = stored(rms_norm(x, gamma, config_.rms_norm_eps).y);
    const Numbers logits = linear(normed, weight(head), {}, hidden);
    NaiveTraining::Result result;
    result.scores = logprobs(logits, vocab, rows_.edges, temperature);
    const auto [c, e] = coefficients(result.scores);
    const Numbers d_logits =
        stored(logprob_gradient(logits, vocab, rows_.edges, temperature, c, e));
    auto d = linear_gradients(normed, weight(head), d_logits, hidden);
    add(head, d.dw);
    Numbers dx = norm_backward("model.norm.weight", x, stored(d.dx));
    for (std::int64_t layer = config_.num_hidden_layers; layer-- > 0;) {
      dx = backward(layer, kept[at(layer)], dx);
    }
    Numbers d_embedding(embedding.size());
    for (std::size_t t = 0; t < rows_.tokens.size(); ++t) {
      for (std::int64_t i = 0; i < hidden; ++i) {
        d_embedding[at(rows_.tokens[t] * hidden + i)] += dx[t * at(hidden) + at(i)];
      }
    }
    add("model.embed_tokens.weight", d_embedding);
    result.gradients = std::move(gradients_);
    return result;
  }

 private:
  Numbers forward(std::int64_t layer, const Numbers& x, Kept& kept) {
    layer_ = "model.layers." + std::to_string(layer) + ".";
    const auto rows = static_cast<std::int64_t>(rows_.tokens.size());
    kept.x = x;
    kept.normed =
        stored(rms_norm(x, weight(layer_ + "input_layernorm.weight"), config_.rms_norm_eps).y);
    kept.q_raw = project("self_attn.q_proj", kept.normed);
    kept.k_raw = project("self_attn.k_proj", kept.normed);
    kept.attention = {.queries = rows,
                      .keys = rows,
                      .heads = config_.num_attention_heads,
                      .kv_heads = config_.num_key_value_heads,
                      .dim = config_.head_dim,
                      .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                      .q = turned("q", kept.q_raw, config_.num_attention_heads),
                      .k = turned("k", kept.k_raw, config_.num_key_value_heads),
                      .v = project("self_attn.v_proj", kept.normed),
                      .mask = rows_.mask};
    kept.out = stored(attention(kept.attention).out);
    kept.middle = sum(x, project("self_attn.o_proj", kept.out));
    kept.mlp_normed =
        stored(rms_norm(kept.middle, weight(layer_ + "post_attention_layernorm.weight"),
                        config_.rms_norm_eps)
                   .y);
    kept.gate_up =
        beside(project("mlp.gate_proj", kept.mlp_normed), project("mlp.up_proj", kept.mlp_normed));
    kept.hidden = stored(swiglu(kept.gate_up, config_.intermediate_size));
    return sum(kept.middle, project("mlp.down_proj", kept.hidden));
  }

  Numbers backward(std::int64_t layer, const Kept& kept, const Numbers& dy) {
    layer_ = "model.layers." + std::to_string(layer) + ".";
    const auto width = config_.intermediate_size;
    const Numbers d_hidden = projected_back("mlp.down_proj", kept.hidden, dy);
    const Numbers d_gate_up = stored(swiglu_gradient(kept.gate_up, width, d_hidden));
    // One matrix of gate and up: their parts of the gradient are summed before they are stored.
    const Numbers d_mlp_normed = stored(
        plus(back("mlp.gate_proj", kept.mlp_normed, columns(d_gate_up, 2 * width, 0, width)),
             back("mlp.up_proj", kept.mlp_normed, columns(d_gate_up, 2 * width, width, width))));
    const Numbers d_middle = stored(plus(
        norm_gradient(layer_ + "post_attention_layernorm.weight", kept.middle, d_mlp_normed), dy));
    const Numbers d_out = projected_back("self_attn.o_proj", kept.out, d_middle);
    const auto d = attention_gradients(kept.attention, d_out);
    const Numbers dq = turned_back("q", kept.q_raw, config_.num_attention_heads, stored(d.dq));
    const Numbers dk = turned_back("k", kept.k_raw, config_.num_key_value_heads, stored(d.dk));
    const Numbers d_normed = stored(plus(
        plus(back("self_attn.q_proj", kept.normed, dq), back("self_attn.k_proj", kept.normed, dk)),
        back("self_attn.v_proj", kept.normed, stored(d.dv))));
    return stored(
        plus(norm_gradient(layer_ + "input_layernorm.weight", kept.x, d_normed), d_middle));
  }

  Numbers turned(const std::string& which, const Numbers& raw, std::int64_t heads) const {
    Numbers x = raw;
    if (config_.qk_norm) {
      x = stored(
          rms_norm(x, weight(layer_ + "self_attn." + which + "_norm.weight"), config_.rms_norm_eps)
              .y);
    }
    return stored(rope(x, heads, config_.head_dim, rows_.positions, frequencies_, 1));
  }

  Numbers turned_back(const std::string& which, const Numbers& raw, std::int64_t heads,
                      const Numbers& d) {
    Numbers opposite = frequencies_;
    for (double& frequency : opposite) frequency = -frequency;
    Numbers dx = stored(rope(d, heads, config_.head_dim, rows_.positions, opposite, 1));
    if (config_.qk_norm) {
      dx = norm_backward(layer_ + "self_attn." + which + "_norm.weight", raw, dx);
    }
    return dx;
  }

  Numbers norm_gradient(const std::string& name, const Numbers& x, const Numbers& dy) {
    const auto d = rms_norm_gradients(x, weight(name), config_.rms_norm_eps, dy);
    add(name, d.dgamma);
    return d.dx;
  }
  Numbers norm_backward(const std::string& name, const Numbers& x, const Numbers& dy) {
    return stored(norm_gradient(name, x, dy));
  }

  Numbers project(const std::string& name, const Numbers& x) const {
    const auto found = model_.weights.find(layer_ + name + ".bias");
    const Numbers bias = found == model_.weights.end() ? Numbers{} : stored(found->second);
    return stored(linear(x, weight(layer_ + name + ".weight"), bias, width_of(x)));
  }
  Numbers back(const std::string& name, const Numbers& x, const Numbers& dy) {
    auto d = linear_gradients(x, weight(layer_ + name + ".weight"), dy, width_of(x));
    add(layer_ + name + ".weight", d.dw);
    if (model_.weights.count(layer_ + name + ".bias") > 0) add(layer_ + name + ".bias", d.dbias);
    return d.dx;
  }
  Numbers projected_back(const std::string& name, const Numbers& x, const Numbers& dy) {
    return stored(back(name, x, dy));
  }

  std::int64_t width_of(const Numbers& x) const {
    return static_cast<std::int64_t>(x.size() / rows_.tokens.size());
  }
  Numbers beside(const Numbers& a, const Numbers& b) const {
    const auto width = width_of(a);
    Numbers both;
    for (std::size_t t = 0; t < rows_.tokens.size(); ++t) {
      for (const Numbers* part : {&a, &b}) {
        const auto begin = part->begin() + static_cast<std::int64_t>(t) * width;
        both.insert(both.end(), begin, begin + width);
      }
    }
    return both;
  }
  static Numbers plus(Numbers a, const Numbers& b) {
    for (std::size_t i = 0; i < b.size(); ++i) a[i] += b[i];
    return a;
  }
  Numbers sum(const Numbers& a, const Numbers& b) const { return stored(plus(a, b)); }

  Numbers weight(const std::string& name) const { return stored(model_.weights.at(name)); }
  Numbers stored(Numbers values) const {
    for (double& value : values) value = model_.stored(value);
    return values;
  }
  void add(const std::string& name, const Numbers& gradient) {
    Numbers& sum = gradients_[name];
    sum.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
  }

  const NaiveTraining& model_;
  const ModelConfig& config_;
  const NaiveTraining::Rows& rows_;
  Numbers frequencies_;
  std::string layer_;  // the block that is at work
  std::map<std::string, Numbers> gradients_;
};

}  // namespace

NaiveTraining::Result NaiveTraining::run(
    const Rows& rows, double temperature,
    const std::function<Coefficients(const Logprobs&)>& coefficients) const {
  return Pass(*this, rows).run(temperature, coefficients);
}

}  // namespace coppice::reference
