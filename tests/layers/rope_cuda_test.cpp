// The rotary embedding on a CUDA device: at most twice the naive method's error, in the columns of
// a fused matrix whose other columns are garbage.
//
// Seen red: the second half of a pair read eight columns early; a token turned by the position of
// the one before it.
#include "layers/rope.hpp"

#include <gtest/gtest.h>

#include "layers/cuda_support.hpp"

namespace coppice {
namespace {

using test::errors_of_naive;
using test::Surrounded;
using test::values_of;
using Start = Surrounded::Start;

// Half heads around the pack (8), and more pairs than a block has threads.
TEST(RopeCuda, IsAsExactAsItsStorageAmongGarbage) {
  test::TestContext test(test::kCudaDevice);
  const std::vector<std::int32_t> positions{0, 1, 2, 9, 3, 1};
  for (const auto& [heads, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 2}, {3, 14}, {2, 16}, {5, 18}, {40, 64}, {9, 128}, {40, 128}}) {
    const RopeTable table(test.memory(), DType::kBF16, {}, width, 10);
    const auto frequencies = rope_frequencies({}, width);
    for (const Start start : {Start::kAligned, Start::kUnaligned}) {
      SCOPED_TRACE(fmt::format("{} x {}, {}", heads, width, start == Start::kAligned));
      Surrounded matrix(test, DType::kBF16, 6, heads * width, start, "x");
      const TensorView x = matrix.view().reshape({6, heads, width});
      const auto expected = reference::rope(values_of(x), heads, width, positions, frequencies, 1);
      rope_forward(test.ctx(), table, positions, x);
      EXPECT_LE(errors_of_naive(x, expected), 2);
      EXPECT_TRUE(matrix.surroundings_are_untouched());
    }
  }
}

TEST(RopeCuda, GivesTheSameBitsUnderEverySchedule) {
  test::TestContext test(test::kCudaDevice);
  const RopeTable table(test.memory(), DType::kBF16, {}, 64, 10);
  EXPECT_TRUE(test::same_bits_under_every_schedule([&] {
    std::vector<Tensor> results;
    Tensor& x = results.emplace_back(test.random(DType::kBF16, {3, 9, 64}, "x"));
    rope_forward(test.ctx(), table, std::vector<std::int32_t>{4, 5, 9}, x);
    Tensor& dx = results.emplace_back(test.random(DType::kBF16, {3, 9, 64}, "dx"));
    rope_backward(test.ctx(), table, std::vector<std::int32_t>{4, 5, 9}, dx);
    return results;
  }));
}

}  // namespace
}  // namespace coppice
