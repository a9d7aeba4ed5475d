// The embedding on a CUDA device: rows among garbage, sums in f32 in the order of rows, whatever
// the schedule.
//
// Seen red: rows of a token added in reverse order; the last row of each token left out.
#include "layers/vocab_parallel_embedding.hpp"

#include <gtest/gtest.h>

#include "layers/cuda_support.hpp"

namespace coppice {
namespace {

using test::Surrounded;
using test::values_of;
using Start = Surrounded::Start;

// f32 sums depend on their order, so equal bits mean equal order.
TEST(EmbeddingCuda, AddsRowsInTheirOrderInF32) {
  test::TestContext test(test::kCudaDevice);
  const VocabShard shard{.vocab_size = 11, .padded_rows = 11, .begin = 0, .size = 11};
  std::vector<std::int32_t> tokens;
  for (std::int32_t t = 0; t < 120; ++t) tokens.push_back(t % 4 == 0 ? 3 : t * t % 11);
  for (const std::int64_t width : {1, 8, 519, 520}) {
    for (const Start start : {Start::kAligned, Start::kUnaligned}) {
      SCOPED_TRACE(fmt::format("{}, {}", width, start == Start::kAligned));
      Surrounded dy(test, DType::kBF16, 120, width, start, "dy");
      const auto before = test.random(DType::kF32, {11, width}, "dweight");
      const auto values = values_of(dy.view());
      auto expected = values_of(before);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto n = static_cast<std::size_t>(width);
        double& sum = expected[static_cast<std::size_t>(tokens[i / n]) * n + i % n];
        sum = static_cast<float>(sum) + static_cast<float>(values[i]);
      }
      EXPECT_TRUE(test::same_bits_under_every_schedule([&] {
        std::vector<Tensor> results;
        Tensor& dweight = results.emplace_back(test.random(DType::kF32, {11, width}, "dweight"));
        embedding_backward(test.ctx(), shard, tokens, dy.view(), dweight);
        EXPECT_EQ(values_of(dweight), expected);
        return results;
      }));
    }
  }
}

TEST(EmbeddingCuda, PicksRowsAmongGarbage) {
  test::TestContext test(test::kCudaDevice);
  const VocabShard shard{.vocab_size = 9, .padded_rows = 3, .begin = 3, .size = 3};
  const std::vector<std::int32_t> tokens{4, 0, 8, 5, 4, 3};
  for (const std::int64_t width : {1, 7, 8, 2056}) {
    for (const Start start : {Start::kAligned, Start::kUnaligned}) {
      Surrounded weight(test, DType::kBF16, 3, width, start, "weight");
      Surrounded y(test, DType::kBF16, 6, width, start, "y");
      embedding_forward(test.ctx(), weight.view(), shard, tokens, y.view());
      const auto rows = values_of(weight.view());
      std::vector<double> expected;
      for (const auto token : tokens) {
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>((token - 3) * width + i);
          expected.push_back(shard.holds(token) ? rows[at] : 0.0);
        }
      }
      EXPECT_EQ(values_of(y.view()), expected);
      EXPECT_TRUE(y.surroundings_are_untouched());
    }
  }
}

}  // namespace
}  // namespace coppice
