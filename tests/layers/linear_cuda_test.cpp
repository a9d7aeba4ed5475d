// A linear with a bias on a CUDA device, where the product adds it before anything is rounded: one
// rounding of the exact sum, where a second pass would have rounded twice.
//
// Seen red: the bias left out of the product.
#include "layers/linear.hpp"

#include <gtest/gtest.h>

#include <array>

#include "core/copy.hpp"
#include "layers/column_parallel_linear.hpp"
#include "layers/cuda_support.hpp"

namespace coppice {
namespace {

using test::values_of;

TEST(LinearCuda, AddsItsBiasBeforeItRounds) {
  test::TestContext test(test::kCudaDevice);
  test::OneRank rank;
  for (const bool bias : {false, true}) {
    for (const auto [tokens, in, out] : {std::array<std::int64_t, 3>{1, 7, 11}, {13, 64, 96}}) {
      SCOPED_TRACE(fmt::format("{} x {} -> {}, bias {}", tokens, in, out, bias));
      ColumnParallelLinear layer(
          rank.context, {test.memory(), DType::kBF16},
          {.name = "qkv", .in_features = in, .parts = {{"q", out - 3}, {"k", 3}}, .bias = bias});
      std::vector<Parameter*> parameters;
      layer.collect(parameters);
      for (Parameter* parameter : parameters) {
        const auto& shape = parameter->value.shape();
        copy(test.stream(), test.random(DType::kBF16, shape, parameter->name), parameter->value);
      }
      const Tensor x = test.random(DType::kBF16, {tokens, in}, "x");
      Tensor y = test.filled(DType::kBF16, {tokens, out}, 7);
      layer.forward(test.ctx(), x, y);
      const auto b = bias ? values_of(parameters[1]->value) : std::vector<double>{};
      const auto exact = reference::linear(values_of(x), values_of(parameters[0]->value), b, in);
      // The naive method rounds the exact sum once; sums in f32 may move it to the next number.
      EXPECT_LE(test::errors_of_naive(y, exact), 1.1);
    }
  }
}

}  // namespace
}  // namespace coppice
