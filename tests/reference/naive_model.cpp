#include "reference/naive_model.hpp"

#include <cmath>

namespace coppice::reference {
namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

Vector times(const Vector& matrix, const Vector& x) {
  Vector y(matrix.size() / x.size(), 0.0);
  for (std::size_t o = 0; o < y.size(); ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += matrix[o * x.size() + i] * x[i];
  }
  return y;
}

void add(Vector& x, const Vector& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Root-mean-square norm of x[begin, begin + gamma's size).
void norm(Vector& x, std::size_t begin, const Vector& gamma, double epsilon) {
  double square = 0;
  for (std::size_t i = 0; i < gamma.size(); ++i) square += x[begin + i] * x[begin + i];
  const double scale = 1 / std::sqrt(square / static_cast<double>(gamma.size()) + epsilon);
  for (std::size_t i = 0; i < gamma.size(); ++i) x[begin + i] *= scale * gamma[i];
}

void rotate(Vector& x, std::size_t begin, std::size_t head_dim, std::size_t position,
            const RopeConfig& rope) {
  const double scale = rope.type == RopeType::kLinear ? rope.factor : 1.0;
  const std::size_t half = head_dim / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    const double angle = static_cast<double>(position) / std::pow(rope.theta, exponent) / scale;
    const double a = x[begin + i], b = x[begin + half + i];
    x[begin + i] = a * std::cos(angle) - b * std::sin(angle);
    x[begin + half + i] = b * std::cos(angle) + a * std::sin(angle);
  }
}

}  // namespace

NaiveModel::Scores NaiveModel::score(const std::vector<std::int32_t>& tokens,
                                     double temperature) const {
  const auto width = static_cast<std::size_t>(config.head_dim);
  const auto heads = static_cast<std::size_t>(config.num_attention_heads);
  const auto kv_heads = static_cast<std::size_t>(config.num_key_value_heads);
  const auto& embedding = weights.at("model.embed_tokens.weight");
  Rows x;
  for (const auto token : tokens) {
    const auto begin = embedding.begin() + token * config.hidden_size;
    x.emplace_back(begin, begin + config.hidden_size);
  }
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const auto weight = [&](const std::string& part) -> const Vector& {
      return weights.at(name + part);
    };
    Rows q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector normed = x[t];
      norm(normed, 0, weight("input_layernorm.weight"), config.rms_norm_eps);
      for (auto* out : {&q, &k, &v}) {
        const std::string part = out == &q ? "q" : out == &k ? "k" : "v";
        out->push_back(times(weight("self_attn." + part + "_proj.weight"), normed));
        if (config.qkv_bias) add(out->back(), weight("self_attn." + part + "_proj.bias"));
        if (part == "v") continue;
        for (std::size_t begin = 0; begin < out->back().size(); begin += width) {
          if (config.qk_norm) {
            norm(out->back(), begin, weight("self_attn." + part + "_norm.weight"),
                 config.rms_norm_eps);
          }
          rotate(out->back(), begin, width, t, config.rope);
        }
      }
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector joined(heads * width, 0.0);
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t kv = h / (heads / kv_heads) * width;
        Vector score(t + 1, 0.0);
        double sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t i = 0; i < width; ++i) score[s] += q[t][h * width + i] * k[s][kv + i];
          // Scores of tiny models are far from where exp would leave the range of double.
          score[s] = std::exp(score[s] / std::sqrt(static_cast<double>(width)));
          sum += score[s];
        }
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t i = 0; i < width; ++i) {
            joined[h * width + i] += score[s] / sum * v[s][kv + i];
          }
        }
      }
      add(x[t], times(weight("self_attn.o_proj.weight"), joined));
      Vector normed = x[t];
      norm(normed, 0, weight("post_attention_layernorm.weight"), config.rms_norm_eps);
      Vector gate = times(weight("mlp.gate_proj.weight"), normed);
      const Vector up = times(weight("mlp.up_proj.weight"), normed);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(x[t], times(weight("mlp.down_proj.weight"), gate));
    }
  }
  const auto& head = config.tie_word_embeddings ? embedding : weights.at("lm_head.weight");
  Scores scores;
  for (std::size_t t = 0; t + 1 < x.size(); ++t) {
    Vector normed = x[t];
    norm(normed, 0, weights.at("model.norm.weight"), config.rms_norm_eps);
    Vector z = times(head, normed);
    double sum = 0, entropy = 0;
    for (double& value : z) sum += std::exp(value /= temperature);
    for (const double value : z) {
      const double logprob = value - std::log(sum);
      entropy -= std::exp(logprob) * logprob;
    }
    scores.logprobs.push_back(z[static_cast<std::size_t>(tokens[t + 1])] - std::log(sum));
    scores.entropies.push_back(entropy);
  }
  return scores;
}

}  // namespace coppice::reference
