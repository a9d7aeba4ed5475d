// Counts by hand, and the published bounds on the speed-up.
#include "model/flops.hpp"

#include <gtest/gtest.h>

namespace coppice {
namespace {

ModelConfig shape(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                  std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                  std::int64_t vocabulary) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.vocab_size = vocabulary;
  return config;
}

const ModelConfig kTiny = shape(2, 3, 2, 4, 1, 6, 7);

// A layer: q 2x24, k and v 2x6 each, o 24x2: 48 + 24 + 48 = 120; mlp 3 x 2x3 = 18. Two layers: 276.
TEST(LinearWeights, CountTheMatricesOfAllLayersWithoutBiases) {
  EXPECT_EQ(linear_weights(kTiny), 276);
  ModelConfig biased = kTiny;
  biased.qkv_bias = biased.qk_norm = true;
  EXPECT_EQ(linear_weights(biased), 276);
}

// 276 + norms 2 (2 + 2) + 2, embedding 14, head 14.
TEST(ParameterCount, CountsATiedEmbeddingOnce) {
  ModelConfig config = kTiny;
  EXPECT_EQ(parameter_count(config), 276 + 10 + 28);
  config.tie_word_embeddings = true;
  EXPECT_EQ(parameter_count(config), 276 + 10 + 14);
  config.qkv_bias = true;  // 24 + 6 + 6 a layer
  EXPECT_EQ(parameter_count(config), 276 + 10 + 14 + 72);
  config.qk_norm = true;  // 6 + 6 a layer
  EXPECT_EQ(parameter_count(config), 276 + 10 + 14 + 72 + 24);
}

// The published shapes, to tie the count to the world: Llama-3-8B has 8.03e9, Qwen3-8B 8.19e9.
TEST(ParameterCount, EqualsThePublishedSizes) {
  EXPECT_EQ(parameter_count(shape(4096, 14336, 32, 32, 8, 128, 128256)), 8030261248);
  ModelConfig qwen3 = shape(4096, 12288, 36, 32, 8, 128, 151936);
  qwen3.qk_norm = true;
  EXPECT_EQ(parameter_count(qwen3), 8190735360);
}

// 2 x 276 x 10 rows + 4 x 4 heads x 6 x 2 layers x 50 pairs + 2 x 7 x 2 x 3 edge rows
//   = 5520 + 9600 + 84.
TEST(Flops, AreLinearsAttentionAndHead) {
  const PackedWork work{.rows = 10, .visible_pairs = 50, .edge_rows = 3};
  EXPECT_EQ(forward_flops(kTiny, work), 5520.0 + 9600 + 84);
  EXPECT_EQ(executed_flops(kTiny, work), 3 * (5520.0 + 9600 + 84));
}

// P = 3, R = 2, G = 2, by hand: grouped 6 + 2 (6 + 3) pairs, edges on row 2 and each response's
// first row; repeated 2 x 15 pairs.
TEST(Work, CountsPairsAndEdgeRowsOfAGroup) {
  const PackedWork grouped = grouped_work(3, 2, 2), repeated = repeated_work(3, 2, 2);
  EXPECT_EQ(grouped.rows, 7);
  EXPECT_EQ(grouped.visible_pairs, 24);
  EXPECT_EQ(grouped.edge_rows, 3);
  EXPECT_EQ(repeated.rows, 10);
  EXPECT_EQ(repeated.visible_pairs, 30);
  EXPECT_EQ(repeated.edge_rows, 4);
}

// Published to two digits.  Mutations seen red: no head; the head on every row.
TEST(SpeedupBound, EqualsThePublishedFigures) {
  const ModelConfig llama3 = shape(4096, 14336, 32, 32, 8, 128, 128256);
  EXPECT_NEAR(speedup_bound(llama3, 10240, 2048, 8), 3.33, 0.005);
  EXPECT_NEAR(speedup_bound(llama3, 10240, 2048, 32), 4.43, 0.005);
  EXPECT_NEAR(speedup_bound(llama3, 10240, 2048, 128), 4.83, 0.005);
  const ModelConfig qwen3 = shape(4096, 12288, 36, 32, 8, 128, 151936);
  EXPECT_NEAR(speedup_bound(qwen3, 8192, 2048, 32), 3.79, 0.005);
}

TEST(SpeedupBound, IsOneForAGroupOfOne) { EXPECT_EQ(speedup_bound(kTiny, 100, 10, 1), 1.0); }

}  // namespace
}  // namespace coppice
