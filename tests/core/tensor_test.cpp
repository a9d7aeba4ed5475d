#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::values_of;

std::vector<float> counted(int n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST(Shape, KnowsItsElementsAndPrintsItself) {
  EXPECT_EQ(Shape({2, 3, 5}).numel(), 30);
  EXPECT_EQ(Shape({2, 0}).numel(), 0);
  EXPECT_EQ(Shape({}).numel(), 1);
  EXPECT_EQ(Shape({2, 3}).to_string(), "[2, 3]");
  EXPECT_NE(Shape({2}), Shape({2, 1}));
  EXPECT_THROW(Shape({1, 2, 3, 4, 5}), ContractError);
  EXPECT_THROW(Shape({-1}), ContractError);
}

TEST(TensorView, RowsAndColumnsOfAMatrix) {
  // 0 1 2
  // 3 4 5
  auto values = counted(6);
  const TensorView matrix = host_view(values.data(), {2, 3});
  EXPECT_EQ(values_of(matrix.rows(1, 1)), (std::vector<double>{3, 4, 5}));
  const TensorView right = matrix.columns(1, 2);
  EXPECT_EQ(values_of(right), (std::vector<double>{1, 2, 4, 5}));
  EXPECT_FALSE(right.is_contiguous());
  EXPECT_EQ(values_of(right.rows(1, 1)), (std::vector<double>{4, 5}));
  EXPECT_THROW(matrix.columns(2, 2), ContractError);
  EXPECT_THROW(matrix.rows(-1, 1), ContractError);
}

TEST(TensorView, ColumnsOfAFusedMatrixCanBeReadAsHeads) {
  // Two rows of [q0 q0 q1 q1 | k0 k0]: q as [2 rows, 2 heads, 2].
  auto values = counted(12);
  const TensorView q = host_view(values.data(), {2, 6}).columns(0, 4).reshape({2, 2, 2});
  EXPECT_EQ(values_of(q), (std::vector<double>{0, 1, 2, 3, 6, 7, 8, 9}));
  EXPECT_EQ(values_of(q.reshape({2, 4})), values_of(q));
  EXPECT_THROW(q.reshape({4, 2}), ContractError) << "rows are apart: they cannot be merged";
}

TEST(TensorView, AConstViewIsMadeFromAMutableOneAndTheDtypeIsChecked) {
  auto values = counted(2);
  const ConstTensorView view = host_view(values.data(), {2});
  static_assert(std::is_same_v<decltype(view.data<float>()), const float*>);
  static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);
  EXPECT_THROW(view.data<double>(), ContractError);
}

TEST(Tensor, OwnsMovesAndGivesBack) {
  Memory memory(Device{});
  Tensor a(memory, DType::kF64, {3, 5}, "x");
  EXPECT_EQ(memory.current_bytes(), 120);
  Tensor b = std::move(a);
  EXPECT_EQ(memory.current_bytes(), 120);
  EXPECT_TRUE(b.has_value());
  b = Tensor();
  EXPECT_EQ(memory.current_bytes(), 0);
}

}  // namespace
}  // namespace coppice
