// Self-attention alone: what the block's tests cannot see, above all its keys and values for other
// passes.
//
// Seen red: keys handed out before turning and norm; scale from the hidden size; k left unturned.
#include "layers/self_attention.hpp"

#include <gtest/gtest.h>

#include "layers/block_support.hpp"

namespace coppice {
namespace {

using test::kShape;
using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_LAYER_TEST(SelfAttentionLayer);

SelfAttentionConfig attention_config(const test::Family& family) {
  return {.name = "self_attn",
          .hidden_size = kShape.hidden,
          .num_attention_heads = kShape.heads,
          .num_key_value_heads = kShape.kv_heads,
          .head_dim = kShape.head_dim,
          .qkv_bias = family.qkv_bias,
          .qk_norm = family.qk_norm,
          .rms_norm_eps = kShape.epsilon};
}

TEST_P(SelfAttentionLayer, HandsOutItsOutputKeysAndValuesAsTheReferenceHasThem) {
  const test::SmallForest forest(test_.memory(), dtype());
  for (const auto& family : test::kFamilies) {
    SCOPED_TRACE(family.name);
    test::OneRank rank;
    SelfAttention attention(rank.context, storage(), attention_config(family));
    std::vector<Parameter*> parameters;
    attention.collect(parameters);
    test::fill(parameters, 0.7);
    Arena arena(test_.memory(), "activations");
    SelfAttention::Activations acts;
    attention.lease_projections(arena, forest.tokens(), acts);
    attention.lease_output(arena, forest.tokens(), acts);
    const Tensor x = test_.random(dtype(), {forest.tokens(), kShape.hidden}, "x");
    Tensor y = test_.zeros(dtype(), x.shape());
    attention.forward(ctx(), x, forest.rows(), acts, y);
    const auto expected = reference::self_attention(kShape, test::logical(parameters, ""),
                                                    forest.reference_rows(), values_of(x));
    const double bound = tolerance(dtype(), kShape.hidden * kShape.head_dim);
    EXPECT_LE(relative_difference(values_of(y), expected.y), bound);
    EXPECT_LE(relative_difference(values_of(attention.key_space(acts).k), expected.k), bound);
    EXPECT_LE(relative_difference(values_of(attention.key_space(acts).v), expected.v), bound);
  }
}

TEST_P(SelfAttentionLayer, RefusesHeadsThatDoNotDivide) {
  test::OneRank rank;
  auto config = attention_config(test::kFamilies[0]);
  config.num_key_value_heads = 3;
  EXPECT_THROW(SelfAttention(rank.context, storage(), config), ContractError);
}

}  // namespace
}  // namespace coppice
