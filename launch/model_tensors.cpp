#include "launch/model_tensors.hpp"

#include <fmt/format.h>

namespace coppice {

std::vector<ExpectedTensor> tensors_of(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query = config.num_attention_heads * config.head_dim;
  const std::int64_t key = config.num_key_value_heads * config.head_dim;
  std::vector<ExpectedTensor> tensors;
  tensors.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}});
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto add = [&](const char* name, Shape shape) {
      tensors.push_back({fmt::format("model.layers.{}.{}", layer, name), shape});
    };
    add("input_layernorm.weight", {hidden});
    add("self_attn.q_proj.weight", {query, hidden});
    add("self_attn.k_proj.weight", {key, hidden});
    add("self_attn.v_proj.weight", {key, hidden});
    if (config.qkv_bias) {
      add("self_attn.q_proj.bias", {query});
      add("self_attn.k_proj.bias", {key});
      add("self_attn.v_proj.bias", {key});
    }
    if (config.qk_norm) {
      add("self_attn.q_norm.weight", {config.head_dim});
      add("self_attn.k_norm.weight", {config.head_dim});
    }
    add("self_attn.o_proj.weight", {hidden, query});
    add("post_attention_layernorm.weight", {hidden});
    add("mlp.gate_proj.weight", {config.intermediate_size, hidden});
    add("mlp.up_proj.weight", {config.intermediate_size, hidden});
    add("mlp.down_proj.weight", {hidden, config.intermediate_size});
  }
  tensors.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings)
    tensors.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  return tensors;
}

}  // namespace coppice
