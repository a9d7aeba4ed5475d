#include "model/flops.hpp"

namespace coppice {

std::int64_t linear_weights(const ModelConfig& c) {
  const auto q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const auto attention = c.hidden_size * (q + 2 * kv) + q * c.hidden_size;
  return c.num_hidden_layers * (attention + 3 * c.hidden_size * c.intermediate_size);
}

std::int64_t parameter_count(const ModelConfig& c) {
  const auto q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const auto per_layer =
      2 * c.hidden_size + (c.qkv_bias ? q + 2 * kv : 0) + (c.qk_norm ? 2 * c.head_dim : 0);
  const auto vocabulary = c.vocab_size * c.hidden_size * (c.tie_word_embeddings ? 1 : 2);
  return linear_weights(c) + c.num_hidden_layers * per_layer + c.hidden_size + vocabulary;
}

double forward_flops(const ModelConfig& c, const PackedWork& work) {
  const auto product = [](auto... factors) { return (1.0 * ... * static_cast<double>(factors)); };
  return product(2, linear_weights(c), work.rows) +
         product(4, c.num_attention_heads, c.head_dim, c.num_hidden_layers, work.visible_pairs) +
         product(2, c.vocab_size, c.hidden_size, work.edge_rows);
}

RowCosts row_costs(const ModelConfig& c) {
  return {.row = 2.0 * static_cast<double>(linear_weights(c) / c.num_hidden_layers),
          .pair = 4.0 * static_cast<double>(c.num_attention_heads * c.head_dim)};
}

double executed_flops(const ModelConfig& config, const PackedWork& work) {
  return 3 * forward_flops(config, work);
}

PackedWork grouped_work(std::int64_t p, std::int64_t r, std::int64_t g) {
  return {.rows = p + g * r,
          .visible_pairs = p * (p + 1) / 2 + g * (r * p + r * (r + 1) / 2),
          .edge_rows = r == 0 ? 0 : 1 + g * (r - 1)};
}

PackedWork repeated_work(std::int64_t p, std::int64_t r, std::int64_t g) {
  return {
      .rows = g * (p + r), .visible_pairs = g * ((p + r) * (p + r + 1) / 2), .edge_rows = g * r};
}

double speedup_bound(const ModelConfig& config, std::int64_t prefix, std::int64_t response,
                     std::int64_t group_size) {
  return forward_flops(config, repeated_work(prefix, response, group_size)) /
         forward_flops(config, grouped_work(prefix, response, group_size));
}

}  // namespace coppice
