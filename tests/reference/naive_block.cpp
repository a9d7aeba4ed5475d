// The composition; the formulas are in the files it includes.
#include "reference/naive_block.hpp"

#include <cmath>

#include "reference/naive_attention.hpp"

namespace coppice::reference {
namespace {

Numbers weight(const BlockWeights& weights, const std::string& name) {
  const auto found = weights.find(name);
  return found == weights.end() ? Numbers{} : found->second;
}

Numbers project(const BlockWeights& weights, const std::string& name, const Numbers& x,
                std::int64_t in) {
  return linear(x, weights.at(name + ".weight"), weight(weights, name + ".bias"), in);
}

Numbers heads_of(const BlockShape& shape, const BlockWeights& weights, const BlockRows& rows,
                 const std::string& which, std::int64_t heads, const Numbers& x) {
  Numbers projected = project(weights, "self_attn." + which + "_proj", x, shape.hidden);
  const Numbers gamma = weight(weights, "self_attn." + which + "_norm.weight");
  if (!gamma.empty()) projected = rms_norm(projected, gamma, shape.epsilon).y;
  return rope(projected, heads, shape.head_dim, rows.positions, rows.frequencies,
              rows.attention_factor);
}

Numbers sum(const Numbers& a, const Numbers& b) {
  Numbers result = a;
  for (std::size_t i = 0; i < b.size(); ++i) result[i] += b[i];
  return result;
}

}  // namespace

AttentionOutput self_attention(const BlockShape& shape, const BlockWeights& weights,
                               const BlockRows& rows, const Numbers& x) {
  const auto tokens = static_cast<std::int64_t>(rows.positions.size());
  const AttentionProblem problem{.queries = tokens,
                                 .keys = tokens,
                                 .heads = shape.heads,
                                 .kv_heads = shape.kv_heads,
                                 .dim = shape.head_dim,
                                 .scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim)),
                                 .q = heads_of(shape, weights, rows, "q", shape.heads, x),
                                 .k = heads_of(shape, weights, rows, "k", shape.kv_heads, x),
                                 .v = project(weights, "self_attn.v_proj", x, shape.hidden),
                                 .mask = rows.mask};
  const Numbers out = attention(problem).out;
  return {project(weights, "self_attn.o_proj", out, shape.heads * shape.head_dim), problem.k,
          problem.v};
}

AttentionOutput transformer_block(const BlockShape& shape, const BlockWeights& weights,
                                  const BlockRows& rows, const Numbers& x) {
  const Numbers normed = rms_norm(x, weights.at("input_layernorm.weight"), shape.epsilon).y;
  AttentionOutput attended = self_attention(shape, weights, rows, normed);
  const Numbers middle = sum(x, attended.y);
  const Numbers inner =
      rms_norm(middle, weights.at("post_attention_layernorm.weight"), shape.epsilon).y;
  const Numbers gate = project(weights, "mlp.gate_proj", inner, shape.hidden);
  const Numbers up = project(weights, "mlp.up_proj", inner, shape.hidden);
  Numbers hidden(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    hidden[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  }
  const auto tokens = static_cast<std::int64_t>(rows.positions.size());
  const auto width = static_cast<std::int64_t>(hidden.size()) / std::max<std::int64_t>(tokens, 1);
  attended.y = sum(middle, project(weights, "mlp.down_proj", hidden, width));
  return attended;
}

}  // namespace coppice::reference
