// The gated activation on a CUDA device: at most twice the naive method's error, among garbage.
//
// Seen red: gate and up swapped in backward; the last pack of a row read past its end.
#include "layers/swiglu.hpp"

#include <gtest/gtest.h>

#include "layers/cuda_support.hpp"

namespace coppice {
namespace {

using test::errors_of_naive;
using test::Surrounded;
using test::values_of;
using Start = Surrounded::Start;

// Widths around the pack (8) and what a block takes in a go (2048 in packs, 256 one by one).
TEST(SwigluCuda, IsAsExactAsItsStorageAmongGarbage) {
  test::TestContext test(test::kCudaDevice);
  for (const std::int64_t width : {1, 7, 8, 9, 255, 257, 2040, 2056}) {
    for (const Start start : {Start::kAligned, Start::kUnaligned}) {
      SCOPED_TRACE(fmt::format("{}, {}", width, start == Start::kAligned));
      Surrounded gate_up(test, DType::kBF16, 5, 2 * width, start, "gate_up", 3.0);
      Surrounded hidden(test, DType::kBF16, 5, width, start, "hidden");
      Surrounded d_hidden(test, DType::kBF16, 5, width, start, "d_hidden");
      const auto x = values_of(gate_up.view());
      swiglu_forward(test.ctx(), gate_up.view(), hidden.view());
      EXPECT_LE(errors_of_naive(hidden.view(), reference::swiglu(x, width)), 2);
      swiglu_backward(test.ctx(), gate_up.view(), d_hidden.view(), gate_up.view());
      const auto gradient = reference::swiglu_gradient(x, width, values_of(d_hidden.view()));
      EXPECT_LE(errors_of_naive(gate_up.view(), gradient), 2);
      EXPECT_TRUE(gate_up.surroundings_are_untouched());
      EXPECT_TRUE(hidden.surroundings_are_untouched());
    }
  }
}

TEST(SwigluCuda, GivesTheSameBitsUnderEverySchedule) {
  test::TestContext test(test::kCudaDevice);
  const Tensor gate_up = test.random(DType::kBF16, {9, 530}, "gate_up");
  const Tensor d_hidden = test.random(DType::kBF16, {9, 265}, "d_hidden");
  EXPECT_TRUE(test::same_bits_under_every_schedule([&] {
    std::vector<Tensor> results;
    Tensor& hidden = results.emplace_back(test.zeros(DType::kBF16, {9, 265}));
    swiglu_forward(test.ctx(), gate_up, hidden);
    Tensor& gradient = results.emplace_back(test.zeros(DType::kBF16, {9, 530}));
    swiglu_backward(test.ctx(), gate_up, d_hidden, gradient);
    return results;
  }));
}

}  // namespace
}  // namespace coppice
