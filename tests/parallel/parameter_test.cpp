#include "parallel/parameter.hpp"

#include <gtest/gtest.h>

#include "support/test_context.hpp"

namespace coppice {
namespace {

TEST(Parameter, APartIsItsRowsOfTheFusedTensor) {
  test::TestContext test;
  // A fused q (2 rows), k (1 row) of width 2.
  Tensor fused = test.from(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  const ParameterPart k{"k_proj.weight", 2, Shard::whole({1, 2})};
  EXPECT_EQ(test::values_of(rows_of(k, fused)), (std::vector<double>{5, 6}));
}

TEST(Shard, AWholeTensorStartsAtTheOrigin) {
  const Shard shard = Shard::whole({4, 7});
  EXPECT_EQ(shard.global_offset, Shape({0, 0}));
  EXPECT_EQ(shard.local_shape, shard.global_shape);
}

}  // namespace
}  // namespace coppice
