#pragma once
// What a Hugging Face config.json says about a model, as far as this program computes with it.
// Everything it cannot compute exactly is refused here, by name and all at once, before any work;
// a field that changes nothing here is left alone and travels along in `json`.
#include <cstdint>
#include <string>
#include <string_view>

#include "layers/rope_config.hpp"

namespace coppice {

enum class ModelFamily { kLlama, kQwen2, kQwen3, kMistral };

/// "LlamaForCausalLM", as in config.json's architectures.
std::string_view architecture_of(ModelFamily family);

/// Field names are those of config.json.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;  ///< need not be hidden_size / num_attention_heads
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;  ///< Qwen2
  bool qk_norm = false;   ///< Qwen3
  bool tie_word_embeddings = false;
  RopeConfig rope;
  double initializer_range = 0.02;
  std::string json;  ///< as imported, byte for byte

  /// Absent fields take transformers' defaults of the family. The widths, the numbers of layers and
  /// heads and the vocabulary must be there.
  ///
  /// Errors    ConfigError with every problem found, each "file_name: field = value (why). What to
  ///           do."
  /// Source    transformers 5.24, configuration_{llama,qwen2,qwen3,mistral}.py
  static ModelConfig parse(std::string_view json, std::string_view file_name);
};

}  // namespace coppice
