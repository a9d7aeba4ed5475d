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

COPPICE_BACKENDS_TEST(Rows);

TEST_P(Rows, AddsStridedTensorsInPlace) {
  Tensor wide = test_.from(dtype(), {2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor b = test_.from(dtype(), {2, 2}, {10, 20, 30, 40});
  const TensorView a = wide.view().columns(1, 2);
  add_rows(ctx(), a, b, a);
  EXPECT_EQ(values_of(wide), (std::vector<double>{1, 12, 23, 4, 35, 46}));
}

TEST_P(Rows, AddsABiasToEveryRowAndSumsItsGradient) {
  Tensor y = test_.from(dtype(), {3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor bias = test_.from(dtype(), {2}, {100, 200});
  add_bias(ctx(), bias, y);
  EXPECT_EQ(values_of(y), (std::vector<double>{101, 202, 103, 204, 105, 206}));
  Tensor dbias = test_.from(accumulation_of(dtype()), {2}, {100, 200});
  bias_backward(ctx(), y, dbias);
  EXPECT_EQ(values_of(dbias), (std::vector<double>{409, 812}));
}

TEST_P(Rows, SumsBiasGradientsOfEveryWidthTheSameForAnyThreadCount) {
  const DType sums_in = accumulation_of(dtype());
  for (const std::int64_t width : {1, 31, 32, 33, 63, 64, 65, 200}) {
    const Tensor dy = test_.random(dtype(), {277, width}, "dy");
    std::vector<double> sums(static_cast<std::size_t>(width));
    const auto values = values_of(dy);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
    Tensor one = test_.zeros(sums_in, {width}), three = test_.zeros(sums_in, {width});
    ctx().threads = 1;
    bias_backward(ctx(), dy, one);
    ctx().threads = 3;
    bias_backward(ctx(), dy, three);
    EXPECT_LE(relative_difference(values_of(one), sums), tolerance(sums_in));
    EXPECT_TRUE(bit_equal(one, three));
  }
}

// Widths around what a thread or a block of threads takes at once, in rows that lie apart.
TEST_P(Rows, MoveAndAddRowsOfEveryWidthAndTouchNothingBetween) {
  const std::vector<std::int64_t> rows{0, 3, 4};
  for (const std::int64_t width : {1, 7, 8, 9, 64, 2047, 2048, 2056}) {
    const std::int64_t apart = width % 8 == 0 ? width + 8 : width + 1;
    SCOPED_TRACE(width);
    const Tensor wide_x = test_.random(dtype(), {5, apart}, "x");
    const ConstTensorView x = wide_x.view().columns(0, width);
    Tensor wide_picked = test_.filled(dtype(), {3, apart}, 7),
           wide_dx = test_.filled(dtype(), {5, apart}, 7);
    const TensorView picked = wide_picked.view().columns(0, width);
    const TensorView dx = wide_dx.view().columns(0, width);
    gather_rows(ctx(), x, rows, picked);
    scatter_rows(ctx(), picked, rows, dx);
    add_to_rows(ctx(), picked, rows, dx);
    add_rows(ctx(), dx, dx, dx);
    const auto given = values_of(x), found = values_of(dx);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / width;
      EXPECT_EQ(found[i], row == 1 || row == 2 ? 0.0 : 4 * given[i]) << i;
    }
    const auto between = static_cast<std::size_t>(apart - width);
    EXPECT_EQ(values_of(wide_dx.view().columns(width, apart - width)),
              std::vector<double>(5 * between, 7.0));
    EXPECT_EQ(values_of(wide_picked.view().columns(width, apart - width)),
              std::vector<double>(3 * between, 7.0));
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
