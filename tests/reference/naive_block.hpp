#pragma once
// A transformer block in double, put together from the naive ops as a paper writes it: separate q,
// k, v, gate and up matrices, one explicit mask. Gradients of it are taken by finite differences.
#include <map>
#include <string>
#include <vector>

#include "reference/naive_layers.hpp"

namespace coppice::reference {

struct BlockShape {
  std::int64_t hidden, heads, kv_heads, head_dim;
  double epsilon;
};

/// By the end of the Hugging Face name, "self_attn.q_proj.weight". Biases and q/k norms that are
/// not there are not applied.
using BlockWeights = std::map<std::string, Numbers>;

struct BlockRows {
  std::vector<std::vector<int>> mask;  // [T][T]
  std::vector<std::int32_t> positions;
  Numbers frequencies;
  double attention_factor;
};

struct AttentionOutput {
  Numbers y;     // [T][hidden]
  Numbers k, v;  // [T][Hkv][D], k turned
};

AttentionOutput self_attention(const BlockShape& shape, const BlockWeights& weights,
                               const BlockRows& rows, const Numbers& x);

/// Both residual branches. k and v are those of its attention.
AttentionOutput transformer_block(const BlockShape& shape, const BlockWeights& weights,
                                  const BlockRows& rows, const Numbers& x);

}  // namespace coppice::reference
