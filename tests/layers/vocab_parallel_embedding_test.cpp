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

COPPICE_BACKENDS_TEST(Embedding);

constexpr VocabShard kWhole{.vocab_size = 3, .padded_rows = 3, .begin = 0, .size = 3};

TEST_P(Embedding, PicksTheRowsOfItsTokens) {
  const Tensor weight = test_.from(dtype(), {3, 2}, {0, 1, 10, 11, 20, 21});
  Tensor y = test_.zeros(dtype(), {4, 2});
  embedding_forward(ctx(), weight, kWhole, std::vector<std::int32_t>{2, 0, 2, 1}, y);
  EXPECT_EQ(values_of(y), (std::vector<double>{20, 21, 0, 1, 20, 21, 10, 11}));
}

TEST_P(Embedding, AddsUpTheGradientsOfARepeatedToken) {
  Tensor grad = test_.filled(accumulation_of(dtype()), {3, 2}, 100);
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
    grads.push_back(test_.zeros(accumulation_of(dtype()), {7, 83}));
    embedding_backward(ctx(), VocabShard{7, 7, 0, 7}, tokens, dy, grads.back());
  }
  for (const auto& grad : grads) EXPECT_TRUE(bit_equal(grad, grads.front()));
}

// The second of three ranks: tokens 5 to 9 of 13, one row of padding. Integers, so sums are exact.
// Mutations seen red: tokens of other ranks not left out of the gradient; the first token of the
// next rank taken for one of this.
TEST_P(Embedding, TakesTheTokensOfItsRankInRowsOfEveryWidth) {
  constexpr VocabShard kSecond{.vocab_size = 13, .padded_rows = 6, .begin = 5, .size = 5};
  std::vector<std::int32_t> tokens;
  for (std::int32_t t = 0; t < 40; ++t) tokens.push_back(t * t % 13);
  for (const std::int64_t width : {1, 7, 8, 511, 512, 520}) {
    SCOPED_TRACE(width);
    const auto n = static_cast<std::size_t>(width);
    std::vector<double> weights(6 * n), dys(40 * n), ys(40 * n, 0.0), sums(6 * n, 1.0);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 101);
    for (std::size_t i = 0; i < dys.size(); ++i) dys[i] = static_cast<double>(i % 31) - 15;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (!kSecond.holds(tokens[t])) continue;
      const auto row = static_cast<std::size_t>(tokens[t] - 5);
      for (std::size_t i = 0; i < n; ++i) {
        ys[t * n + i] = weights[row * n + i];
        sums[row * n + i] += dys[t * n + i];
      }
    }
    const Tensor weight = test_.from(dtype(), {6, width}, weights);
    const Tensor dy = test_.from(dtype(), {40, width}, dys);
    Tensor y = test_.filled(dtype(), {40, width}, 7);
    Tensor grad = test_.filled(accumulation_of(dtype()), {6, width}, 1);
    embedding_forward(ctx(), weight, kSecond, tokens, y);
    embedding_backward(ctx(), kSecond, tokens, dy, grad);
    EXPECT_EQ(values_of(y), ys);
    EXPECT_EQ(values_of(grad), sums);
  }
}

TEST_P(Embedding, AcceptsNoRows) {
  const Tensor weight = test_.zeros(dtype(), {3, 2});
  Tensor y = test_.zeros(dtype(), {0, 2}), grad = test_.zeros(accumulation_of(dtype()), {3, 2});
  embedding_forward(ctx(), weight, kWhole, {}, y);
  embedding_backward(ctx(), kWhole, {}, y, grad);
  EXPECT_EQ(values_of(grad), std::vector<double>(6, 0.0));
}

TEST_P(Embedding, RefusesTokensOutsideTheVocabulary) {
  Tensor weight = test_.zeros(dtype(), {3, 2}), y = test_.zeros(dtype(), {1, 2});
  EXPECT_THROW(embedding_forward(ctx(), weight, kWhole, std::vector<std::int32_t>{3}, y),
               ContractError);
  Tensor grad = test_.zeros(accumulation_of(dtype()), {3, 2});
  EXPECT_THROW(embedding_backward(ctx(), kWhole, std::vector<std::int32_t>{-1}, y, grad),
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
