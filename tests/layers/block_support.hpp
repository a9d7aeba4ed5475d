#pragma once
// A tiny block of each family with random weights, a small forest to run it on, and the same for
// the naive reference.
#include "layers/support.hpp"
#include "layers/transformer_block.hpp"
#include "reference/finite_differences.hpp"
#include "reference/naive_attention.hpp"
#include "reference/naive_block.hpp"

namespace coppice::test {

struct Family {
  const char* name;
  bool qkv_bias, qk_norm;
};
inline constexpr Family kFamilies[] = {
    {"llama", false, false}, {"qwen2", true, false}, {"qwen3", false, true}};

/// head_dim is not hidden / heads, and nothing is a multiple of a vector.
inline constexpr reference::BlockShape kShape{
    .hidden = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .epsilon = 1e-5};
inline constexpr std::int64_t kIntermediate = 5;

inline TransformerBlockConfig block_config(const Family& family) {
  return {.name = "model.layers.0",
          .hidden_size = kShape.hidden,
          .intermediate_size = kIntermediate,
          .num_attention_heads = kShape.heads,
          .num_key_value_heads = kShape.kv_heads,
          .head_dim = kShape.head_dim,
          .qkv_bias = family.qkv_bias,
          .qk_norm = family.qk_norm,
          .rms_norm_eps = kShape.epsilon};
}

/// A group of four responses (one empty, one of one token) and a second group beside it.
class SmallForest {
 public:
  SmallForest(Memory& memory, DType dtype)
      : tree_{{5, -1}, {3, 0}, {0, 0}, {1, 0}, {4, 0}, {2, -1}, {2, 5}},
        forest_(specs()),
        plan_(forest_),
        positions_(forest_.positions()),
        rope_config_{.type = RopeType::kYarn, .factor = 4.0, .original_max_position_embeddings = 4},
        table_(memory, dtype, rope_config_, kShape.head_dim, 16) {}

  PackedRows rows() const { return {plan_, positions_, table_, nothing_shared_}; }
  const AttentionPlan& plan() const { return plan_; }
  const PrefixForest& forest() const { return forest_; }
  std::int64_t tokens() const { return forest_.rows(); }
  reference::BlockRows reference_rows() const {
    return {reference::visibility(tree_), positions_,
            rope_frequencies(rope_config_, kShape.head_dim), rope_attention_factor(rope_config_)};
  }

 private:
  std::vector<SegmentSpec> specs() const {
    std::vector<SegmentSpec> list;
    for (const auto& segment : tree_) list.push_back({segment.length, segment.parent});
    return list;
  }
  std::vector<reference::TreeSegment> tree_;
  PrefixForest forest_;
  AttentionPlan plan_;
  std::vector<std::int32_t> positions_;
  RopeConfig rope_config_;
  RopeTable table_;
  SharedRows nothing_shared_;
};

/// The logical tensors of `parameters`, values or gradients, under the names the reference uses.
inline reference::BlockWeights logical(const std::vector<Parameter*>& parameters,
                                       std::string_view prefix, bool gradients = false) {
  reference::BlockWeights weights;
  for (Parameter* parameter : parameters) {
    const TensorView whole = gradients ? parameter->grad.view() : parameter->value.view();
    for (const auto& part : parameter->parts) {
      EXPECT_TRUE(part.name.starts_with(prefix)) << part.name;
      weights[part.name.substr(prefix.size())] = values_of(rows_of(part, whole));
    }
  }
  return weights;
}

}  // namespace coppice::test
