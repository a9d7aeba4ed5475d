#include "core/gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "core/build_config.hpp"
#include "core/convert.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::TestContext;
using test::values_of;

struct Types {
  Device device;
  DType input, output;
};
using Case = std::tuple<Types, Transpose, Transpose>;
class Gemm : public testing::TestWithParam<Case> {};

double rounded(double value, DType dtype) {
  return dtype == DType::kBF16 ? static_cast<double>(to_f32(to_bf16(value))) : value;
}

// Small integers are exact in every input dtype and in the accumulation, so the comparison is ==.
// Seen red with the roles of lda and ldb exchanged in cpu/gemm.cpp and in cuda/gemm.cpp, and with
// cuda/gemm.cpp handing on ta as a_transposed.
TEST_P(Gemm, EqualsTheSumOfProductsOnIntegers) {
  const auto [types, ta, tb] = GetParam();
  const auto dtype = types.input;
  TestContext test(types.device);
  for (const std::int64_t m : {0, 1, 3, 17, 64}) {
    for (const std::int64_t n : {1, 5, 33}) {
      for (const std::int64_t k : {0, 1, 7, 65}) {
        const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
        std::vector<double> av, bv, cv;
        for (std::int64_t i = 0; i < m * k; ++i) av.push_back(static_cast<double>(i % 7 - 3));
        for (std::int64_t i = 0; i < k * n; ++i) bv.push_back(static_cast<double>(i % 5 - 2));
        for (std::int64_t i = 0; i < m * n; ++i) cv.push_back(static_cast<double>(i % 3));
        const Tensor a = test.from(dtype, at ? Shape{k, m} : Shape{m, k}, av);
        const Tensor b = test.from(dtype, bt ? Shape{n, k} : Shape{k, n}, bv);
        Tensor c = test.from(types.output, {m, n}, cv);
        gemm(test.ctx(), a, b, c, {.a = ta, .b = tb, .alpha = 2.0, .beta = 1.0});
        const auto result = values_of(c.view());
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              sum += av[static_cast<std::size_t>(at ? l * m + i : i * k + l)] *
                     bv[static_cast<std::size_t>(bt ? j * k + l : l * n + j)];
            }
            const auto at_ij = static_cast<std::size_t>(i * n + j);
            ASSERT_EQ(result[at_ij], rounded(cv[at_ij] + 2 * sum, types.output))
                << m << ' ' << n << ' ' << k;
          }
        }
      }
    }
  }
}

TEST_P(Gemm, WithBetaZeroTheOutputIsNotRead) {
  const auto [types, ta, tb] = GetParam();
  const auto dtype = types.input;
  TestContext test(types.device);
  for (const std::int64_t k : {0, 3}) {
    const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
    const Tensor a = test.filled(dtype, at ? Shape{k, 2} : Shape{2, k}, 1.0);
    const Tensor b = test.filled(dtype, bt ? Shape{2, k} : Shape{k, 2}, 1.0);
    Tensor c = test.filled(types.output, {2, 2}, std::numeric_limits<double>::quiet_NaN());
    gemm(test.ctx(), a, b, c, {.a = ta, .b = tb});
    for (const double value : values_of(c.view())) EXPECT_EQ(value, static_cast<double>(k));
  }
}

TEST_P(Gemm, WorksOnColumnsOfWiderMatrices) {
  const auto [types, ta, tb] = GetParam();
  const auto dtype = types.input;
  TestContext test(types.device);
  const Tensor wide_a = test.random(dtype, {6, 9}, "a"), wide_b = test.random(dtype, {6, 9}, "b");
  Tensor wide_c = test.filled(types.output, {6, 9}, 5.0);
  const ConstTensorView a = wide_a.view().columns(2, 6), b = wide_b.view().columns(3, 6);
  gemm(test.ctx(), a, b, wide_c.view().columns(1, 6), {.a = ta, .b = tb});
  const auto av = values_of(a), bv = values_of(b), cv = values_of(wide_c.view());
  const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
  const double eps = dtype == DType::kF64 ? 2.3e-16 : 1.2e-7;  // of the accumulation
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(cv[i * 9], 5.0) << "a column outside the view was written";
    EXPECT_EQ(cv[i * 9 + 7], 5.0);
    for (std::size_t j = 0; j < 6; ++j) {
      double sum = 0, scale = 0;
      for (std::size_t l = 0; l < 6; ++l) {
        const double product = av[at ? l * 6 + i : i * 6 + l] * bv[bt ? j * 6 + l : l * 6 + j];
        sum += product;
        scale += std::abs(product);
      }
      const double rounding = types.output == DType::kBF16 ? 0x1p-8 * std::abs(sum) : 0.0;
      EXPECT_NEAR(cv[i * 9 + j + 1], sum, 4 * eps * scale + rounding);
    }
  }
}

// Seen red with the epilogue left out of the emulated library, and with the bias along columns.
TEST_P(Gemm, AddsABiasToEveryRowBeforeItRounds) {
  const auto [types, ta, tb] = GetParam();
  TestContext test(types.device);
  const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
  const Tensor a = test.random(types.input, at ? Shape{6, 3} : Shape{3, 6}, "a");
  const Tensor b = test.random(types.input, bt ? Shape{9, 6} : Shape{6, 9}, "b");
  const Tensor biases = test.random(types.output, {2, 16}, "bias");
  const ConstTensorView bias = biases.view().rows(1, 1).reshape({16}).rows(0, 9);
  Tensor product = test.zeros(DType::kF32, {3, 9}), c = test.filled(types.output, {3, 9}, 7.0);
  // Only devices take one, and none that begins at an odd place.
  const bool on_device = types.device.kind == DeviceKind::kCuda;
  EXPECT_EQ(gemm_takes_bias(bias, c), on_device);
  EXPECT_FALSE(gemm_takes_bias(biases.view().reshape({32}).rows(1, 9), c));
  if (!on_device) {
    EXPECT_THROW(gemm(test.ctx(), a, b, c, {.a = ta, .b = tb, .bias = bias}), ContractError);
    return;
  }
  gemm(test.ctx(), a, b, product, {.a = ta, .b = tb});
  gemm(test.ctx(), a, b, c, {.a = ta, .b = tb, .bias = bias});
  auto expected = values_of(product);
  const auto added = values_of(bias);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] =
        static_cast<double>(static_cast<float>(expected[i]) + static_cast<float>(added[i % 9]));
  }
  // The sum of the product may be made in another order, so the last bit may differ.
  const auto rounded = test::rounded(expected, types.output), values = values_of(c);
  const double eps = types.output == DType::kBF16 ? 0x1p-7 : 4 * 1.2e-7;
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], rounded[i], eps * std::max(1.0, std::abs(rounded[i]))) << i;
  }
}

TEST(GemmContract, RefusesExtentsAndDtypesThatDoNotFit) {
  TestContext test;
  const Tensor a = test.zeros(DType::kF32, {2, 3}), b = test.zeros(DType::kF32, {4, 5});
  const Tensor d = test.zeros(DType::kF64, {3, 5});
  Tensor c = test.zeros(DType::kF32, {2, 5});
  EXPECT_THROW(gemm(test.ctx(), a, b, c), ContractError);
  EXPECT_THROW(gemm(test.ctx(), a, d, c), ContractError);
}

std::vector<Types> all_types() {
  std::vector<Types> all = {{Device{}, DType::kF32, DType::kF32},
                            {Device{}, DType::kF64, DType::kF64}};
  if (build::kWithCuda) {
    all.push_back({test::kCudaDevice, DType::kBF16, DType::kBF16});
    all.push_back({test::kCudaDevice, DType::kBF16, DType::kF32});
    all.push_back({test::kCudaDevice, DType::kF32, DType::kF32});
  }
  return all;
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  const auto [types, ta, tb] = info.param;
  return fmt::format("{}{}{}{}", test::Backend{types.device, types.input}.name(),
                     types.output == types.input ? "" : "IntoF32",
                     ta == Transpose::kYes ? "TransposedA" : "",
                     tb == Transpose::kYes ? "TransposedB" : "");
}
INSTANTIATE_TEST_SUITE_P(Backends, Gemm,
                         testing::Combine(testing::ValuesIn(all_types()),
                                          testing::Values(Transpose::kNo, Transpose::kYes),
                                          testing::Values(Transpose::kNo, Transpose::kYes)),
                         name_of_case);

}  // namespace
}  // namespace coppice
