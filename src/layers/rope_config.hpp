#pragma once
// Which rotary position embedding a model has, and the frequencies that follow. The field names are
// those of Hugging Face configurations; reading them, and refusing types that are not here, is the
// model's work.
#include <cstdint>
#include <optional>
#include <vector>

namespace coppice {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;  ///< linear, llama3, yarn
  /// llama3, yarn: the length the model was first trained for
  std::int64_t original_max_position_embeddings = 0;
  double low_freq_factor = 1.0;   ///< llama3
  double high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0;        ///< yarn
  double beta_slow = 1.0;         ///< yarn
  bool truncate = true;           ///< yarn: the ramp's ends are whole dimensions
  std::optional<double> attention_factor{}, mscale{}, mscale_all_dim{};  ///< yarn
};

/// Radians per position of each of the head_dim / 2 pairs.
///
/// Errors    ContractError if head_dim is odd or a parameter of the type has no meaning
/// Source    transformers 5.24, modeling_rope_utils.py; yarn: arXiv:2309.00071
/// Oracle    tests/layers/rope_test.cpp, numbers computed with transformers
std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t head_dim);

/// What cosines and sines are multiplied with: 1 except for yarn.
double rope_attention_factor(const RopeConfig& config);

}  // namespace coppice
