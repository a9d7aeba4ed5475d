// Row helpers against loops written out.
//
// Seen red: bias gradient overwriting instead of adding; scatter_rows leaving other rows as they
// were.
#include "layers/rows.hpp"

#include <gtest/gtest.h>

#include "layers/support.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_LAYER_TEST(Rows);

TEST_P(Rows, AddsStridedTensorsInPlace) {
  Tensor wide = test_.from(dtype(), {2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor b = test_.from(dtype(), {2, 2}, {10, 20, 30, 40});
  const TensorView a = wide.view().columns(1, 2);
  add_rows(ctx(), a, b, a);
  EXPECT_EQ(values_of(wide), (std::vector<double>{1, 12, 23, 4, 35, 46}));
}

TEST_P(Rows, AddsABiasToEveryRowAndSumsItsGradient) {
  Tensor y = test_.from(dtype(), {3, 2}, {1, 2, 3, 4, 5, 6});
  Tensor bias = test_.from(dtype(), {2}, {100, 200});
  add_bias(ctx(), bias, y);
  EXPECT_EQ(values_of(y), (std::vector<double>{101, 202, 103, 204, 105, 206}));
  bias_backward(ctx(), y, bias);
  EXPECT_EQ(values_of(bias), (std::vector<double>{409, 812}));
}

TEST_P(Rows, SumsBiasGradientsOfEveryWidthTheSameForAnyThreadCount) {
  for (const std::int64_t width : {1, 63, 64, 65, 200}) {
    const Tensor dy = test_.random(dtype(), {77, width}, "dy");
    std::vector<double> sums(static_cast<std::size_t>(width));
    const auto values = values_of(dy);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
    Tensor one = test_.zeros(dtype(), {width}), three = test_.zeros(dtype(), {width});
    ctx().threads = 1;
    bias_backward(ctx(), dy, one);
    ctx().threads = 3;
    bias_backward(ctx(), dy, three);
    EXPECT_LE(relative_difference(values_of(one), sums), tolerance(dtype()));
    EXPECT_TRUE(bit_equal(one, three));
  }
}

TEST_P(Rows, GathersRowsAndScattersTheirGradients) {
  const Tensor x = test_.from(dtype(), {4, 2}, {0, 1, 10, 11, 20, 21, 30, 31});
  const std::vector<std::int64_t> rows{1, 3};
  Tensor picked = test_.zeros(dtype(), {2, 2}), dx = test_.filled(dtype(), {4, 2}, 7);
  gather_rows(ctx(), x, rows, picked);
  EXPECT_EQ(values_of(picked), (std::vector<double>{10, 11, 30, 31}));
  scatter_rows(ctx(), picked, rows, dx);
  EXPECT_EQ(values_of(dx), (std::vector<double>{0, 0, 10, 11, 0, 0, 30, 31}));
}

TEST_P(Rows, ScattersNothingToZeroRows) {
  Tensor dx = test_.filled(dtype(), {3, 2}, 7), none = test_.zeros(dtype(), {0, 2});
  scatter_rows(ctx(), none, {}, dx);
  EXPECT_EQ(values_of(dx), std::vector<double>(6, 0.0));
}

TEST_P(Rows, ScattersTheSameForAnyThreadCount) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 300; i += 1 + i % 3) rows.push_back(i);
  const auto count = std::ssize(rows);
  const Tensor picked = test_.random(dtype(), {count, 3}, "picked");
  Tensor one = test_.zeros(dtype(), {300, 3}), three = test_.zeros(dtype(), {300, 3});
  ctx().threads = 1;
  scatter_rows(ctx(), picked, rows, one);
  ctx().threads = 3;
  scatter_rows(ctx(), picked, rows, three);
  EXPECT_TRUE(bit_equal(one, three));
}

TEST_P(Rows, RefusesRowsThatDoNotExistOrComeTwice) {
  Tensor x = test_.zeros(dtype(), {2, 1}), picked = test_.zeros(dtype(), {2, 1});
  EXPECT_THROW(gather_rows(ctx(), x, std::vector<std::int64_t>{0, 2}, picked), ContractError);
  EXPECT_THROW(scatter_rows(ctx(), picked, std::vector<std::int64_t>{1, 1}, x), ContractError);
}

}  // namespace
}  // namespace coppice
