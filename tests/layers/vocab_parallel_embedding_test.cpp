// The embedding by hand, above all a token that comes often.
//
// Seen red: backward overwriting instead of adding.
#include "layers/vocab_parallel_embedding.hpp"

#include <gtest/gtest.h>

#include "layers/support.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::values_of;

COPPICE_LAYER_TEST(Embedding);

constexpr VocabShard kWhole{.vocab_size = 3, .padded_rows = 3, .begin = 0, .size = 3};

TEST_P(Embedding, PicksTheRowsOfItsTokens) {
  const Tensor weight = test_.from(dtype(), {3, 2}, {0, 1, 10, 11, 20, 21});
  Tensor y = test_.zeros(dtype(), {4, 2});
  embedding_forward(ctx(), weight, kWhole, std::vector<std::int32_t>{2, 0, 2, 1}, y);
  EXPECT_EQ(values_of(y), (std::vector<double>{20, 21, 0, 1, 20, 21, 10, 11}));
}

TEST_P(Embedding, AddsUpTheGradientsOfARepeatedToken) {
  Tensor grad = test_.filled(dtype(), {3, 2}, 100);
  const Tensor dy = test_.from(dtype(), {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  embedding_backward(ctx(), kWhole, std::vector<std::int32_t>{2, 0, 2, 2}, dy, grad);
  EXPECT_EQ(values_of(grad), (std::vector<double>{103, 104, 100, 100, 113, 116}));
}

TEST_P(Embedding, GivesTheSameBitsForAnyThreadCount) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 400; ++i) tokens.push_back(i * i % 7);
  const Tensor dy = test_.random(dtype(), {400, 83}, "dy");
  std::vector<Tensor> grads;
  for (const int threads : {1, 2, 3, 7}) {
    ctx().threads = threads;
    grads.push_back(test_.zeros(dtype(), {7, 83}));
    embedding_backward(ctx(), VocabShard{7, 7, 0, 7}, tokens, dy, grads.back());
  }
  for (const auto& grad : grads) EXPECT_TRUE(bit_equal(grad, grads.front()));
}

TEST_P(Embedding, AcceptsNoRows) {
  Tensor weight = test_.zeros(dtype(), {3, 2}), y = test_.zeros(dtype(), {0, 2});
  embedding_forward(ctx(), weight, kWhole, {}, y);
  embedding_backward(ctx(), kWhole, {}, y, weight);
}

TEST_P(Embedding, RefusesTokensOutsideTheVocabulary) {
  Tensor weight = test_.zeros(dtype(), {3, 2}), y = test_.zeros(dtype(), {1, 2});
  EXPECT_THROW(embedding_forward(ctx(), weight, kWhole, std::vector<std::int32_t>{3}, y),
               ContractError);
  EXPECT_THROW(embedding_backward(ctx(), kWhole, std::vector<std::int32_t>{-1}, y, weight),
               ContractError);
}

TEST_P(Embedding, IsAMatrixThatDecays) {
  test::OneRank rank;
  VocabParallelEmbedding layer(rank.context, storage(), "model.embed_tokens", 151, 6);
  EXPECT_EQ(layer.weight().parts.at(0).name, "model.embed_tokens.weight");
  EXPECT_EQ(layer.weight().value.shape(), Shape({151, 6}));
  EXPECT_EQ(layer.weight().weight_decay, WeightDecay::kYes);
}

}  // namespace
}  // namespace coppice
