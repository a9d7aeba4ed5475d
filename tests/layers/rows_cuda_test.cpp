// Row helpers on a CUDA device, among garbage: moves are exact, sums are rounded once.
//
// Seen red: the sums of the last warp left out of a bias gradient; its barrier taken out; the bias
// of each row read eight columns behind that of the row before.
#include "layers/rows.hpp"

#include <gtest/gtest.h>

#include "layers/cuda_support.hpp"

namespace coppice {
namespace {

using test::relative_difference;
using test::rounded;
using test::Surrounded;
using test::tolerance;
using test::values_of;
using Start = Surrounded::Start;

class RowsCuda : public testing::TestWithParam<Start> {
 protected:
  Surrounded random(std::int64_t rows, std::int64_t width, const char* name) {
    return Surrounded(test_, DType::kBF16, rows, width, GetParam(), name);
  }
  ExecContext& ctx() { return test_.ctx(); }
  test::TestContext test_{test::kCudaDevice};
};
INSTANTIATE_TEST_SUITE_P(Rows, RowsCuda, testing::Values(Start::kAligned, Start::kUnaligned),
                         [](const auto& one) {
                           return one.param == Start::kAligned ? "Aligned" : "Unaligned";
                         });

constexpr std::int64_t kWidths[] = {1, 7, 8, 33, 256, 2048, 2056};

TEST_P(RowsCuda, AddsRowsAndBiasesWithOneRounding) {
  for (const auto width : kWidths) {
    SCOPED_TRACE(width);
    auto a = random(4, width, "a"), b = random(4, width, "b"), sum = random(4, width, "sum");
    const Tensor bias = test_.random(DType::kBF16, {width}, "bias");
    auto expected = values_of(a.view());
    const auto addend = values_of(b.view()), biases = values_of(bias);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += addend[i];
    add_rows(ctx(), a.view(), b.view(), sum.view());
    EXPECT_EQ(values_of(sum.view()), rounded(expected, DType::kBF16));
    expected = addend;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += biases[i % biases.size()];
    add_bias(ctx(), bias, b.view());
    EXPECT_EQ(values_of(b.view()), rounded(expected, DType::kBF16));
    EXPECT_TRUE(sum.surroundings_are_untouched() && b.surroundings_are_untouched());
  }
}

TEST_P(RowsCuda, MovesRowsAmongGarbage) {
  const std::vector<std::int64_t> rows{1, 2, 5};
  for (const auto width : kWidths) {
    SCOPED_TRACE(width);
    auto x = random(6, width, "x"), picked = random(3, width, "picked"),
         dx = random(6, width, "dx");
    gather_rows(ctx(), x.view(), rows, picked.view());
    scatter_rows(ctx(), picked.view(), rows, dx.view());
    add_to_rows(ctx(), picked.view(), rows, dx.view());
    const auto given = values_of(x.view()), found = values_of(dx.view());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / width;
      const bool picks = row == 1 || row == 2 || row == 5;
      EXPECT_EQ(found[i], picks ? 2 * given[i] : 0.0) << i;
    }
    EXPECT_TRUE(dx.surroundings_are_untouched() && picked.surroundings_are_untouched());
  }
}

// f32 into bf16: rounded once, after the addition. Seen red with the addend rounded first.
TEST_P(RowsCuda, AddsSumsToRowsWithOneRounding) {
  const std::vector<std::int64_t> rows{0, 2, 3};
  for (const auto width : kWidths) {
    SCOPED_TRACE(width);
    auto dx = random(5, width, "dx");
    Surrounded sums(test_, DType::kF32, 3, width, GetParam(), "sums");
    auto expected = values_of(dx.view());
    const auto addend = values_of(sums.view());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < static_cast<std::size_t>(width); ++j) {
        expected[static_cast<std::size_t>(rows[i] * width) + j] +=
            addend[i * static_cast<std::size_t>(width) + j];
      }
    }
    // The device adds in f32 before it rounds to bf16.
    expected = rounded(rounded(expected, DType::kF32), DType::kBF16);
    add_to_rows(ctx(), sums.view(), rows, dx.view());
    EXPECT_EQ(values_of(dx.view()), expected);
    EXPECT_TRUE(dx.surroundings_are_untouched());
  }
}

TEST_P(RowsCuda, AddsNothingToNoRows) {
  auto dx = random(2, 8, "dx");
  Surrounded none(test_, DType::kF32, 0, 8, GetParam(), "none");
  const auto before = values_of(dx.view());
  add_to_rows(ctx(), none.view(), {}, dx.view());
  EXPECT_EQ(values_of(dx.view()), before);
}

// Rows around what the warps of a block take between two double sums, 128.
TEST_P(RowsCuda, SumsBiasGradientsOfManyRowsAlmostExactly) {
  for (const std::int64_t count : {0, 1, 8, 127, 128, 129, 1000}) {
    for (const std::int64_t width : {1, 33}) {
      SCOPED_TRACE(fmt::format("{} x {}", count, width));
      auto dy = random(count, width, "dy");
      const Tensor before = test_.random(DType::kF32, {width}, "dbias");
      const auto values = values_of(dy.view());
      auto expected = values_of(before);
      for (std::size_t i = 0; i < values.size(); ++i) expected[i % expected.size()] += values[i];
      EXPECT_TRUE(test::same_bits_under_every_schedule([&] {
        std::vector<Tensor> results;
        Tensor& dbias = results.emplace_back(test_.random(DType::kF32, {width}, "dbias"));
        bias_backward(ctx(), dy.view(), dbias);
        EXPECT_LE(relative_difference(values_of(dbias), expected), 4 * tolerance(DType::kF32));
        return results;
      }));
    }
  }
}

}  // namespace
}  // namespace coppice
