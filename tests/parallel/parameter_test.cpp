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

TEST(Shard, AlongAnAxisCutsThatAxisOnly) {
  const Shard shard = Shard::along({4, 7}, 1, 5, 2);
  EXPECT_EQ(shard.global_shape, Shape({4, 7}));
  EXPECT_EQ(shard.global_offset, Shape({0, 5}));
  EXPECT_EQ(shard.local_shape, Shape({4, 2}));
  EXPECT_EQ(Shard::along({4, 7}, 0, 4, 0).local_shape, Shape({0, 7}));
  EXPECT_THROW(Shard::along({4, 7}, 1, 5, 3), ContractError);
}

TEST(Parameter, PaddingBehindThePartsIsZero) {
  test::TestContext test;
  const Parameter parameter =
      make_parameter({test.memory(), DType::kF32}, "embedding",
                     {{"embedding", Shard::along({5, 2}, 0, 3, 2)}}, WeightDecay::kYes, 1);
  EXPECT_EQ(parameter.rows(), 3);
  EXPECT_EQ(test::values_of(parameter.value.view().rows(2, 1)), (std::vector<double>{0, 0}));
}

// Mutation seen red, where memory is poisoned: the padding of the master left as it was.
TEST(Parameter, LearnsAtFullPrecisionBesideValuesOfSixteenBits) {
  test::TestContext test;
  const std::vector<PartShard> parts{{"embedding", Shard::along({5, 2}, 0, 3, 2)}};
  Parameter parameter =
      make_parameter({test.memory(), DType::kBF16}, "embedding", parts, WeightDecay::kYes, 1);
  EXPECT_EQ(parameter.value.dtype(), DType::kBF16);
  EXPECT_EQ(parameter.grad.dtype(), DType::kF32);
  EXPECT_EQ(parameter.weights().dtype(), DType::kF32);
  EXPECT_EQ(test::values_of(parameter.master.view().rows(2, 1)), (std::vector<double>{0, 0}));
  const std::vector<float> weights{1.0f, 1.001f, -3.0f, 0.1f};
  std::copy(weights.begin(), weights.end(), parameter.weights().data<float>());
  round_master(test.ctx(), parameter);
  EXPECT_EQ(test::values_of(parameter.value), (std::vector<double>{1, 1, -3, 0.10009765625, 0, 0}));

  Parameter frozen = make_parameter({test.memory(), DType::kBF16, WithGradients::kNo}, "embedding",
                                    parts, WeightDecay::kYes, 1);
  EXPECT_FALSE(frozen.has_master());
  EXPECT_EQ(frozen.weights().dtype(), DType::kBF16);
}

}  // namespace
}  // namespace coppice
