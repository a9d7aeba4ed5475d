#include "core/copy.hpp"

#include <gtest/gtest.h>

#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::Backend;
using test::TestContext;
using test::values_of;

class CopyOn : public testing::TestWithParam<Backend> {};

TEST_P(CopyOn, MovesWholeTensorsAndSomeColumnsOfWiderOnes) {
  const auto [device, dtype] = GetParam();
  TestContext test(device);
  const Tensor from = test.random(dtype, {5, 8}, "from");
  Tensor whole = test.filled(dtype, {5, 8}, 7.0), some = test.filled(dtype, {5, 8}, 7.0);
  copy(test.stream(), from, whole);
  EXPECT_TRUE(test::bit_equal(whole, from));
  copy(test.stream(), from.view().columns(2, 3), some.view().columns(1, 3));
  const auto values = values_of(some), source = values_of(from);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      const bool inside = column >= 1 && column < 4;
      EXPECT_EQ(values[row * 8 + column], inside ? source[row * 8 + column + 1] : 7.0);
    }
  }
}

// To the device and back; on the CPU, from one place of the host to another. The source changes as
// soon as copy() has returned. Seen red on the emulated device without the copy of a source that is
// not pinned.
TEST_P(CopyOn, TakesTheHostsMemoryBeforeItReturnsAndGivesItWhenItReturns) {
  const auto [device, dtype] = GetParam();
  for (std::uint64_t round = 0; round < 8; ++round) {
    TestContext test(device), host;
    Tensor there = test.zeros(dtype, {4, 6});
    Tensor source = host.filled(dtype, {4, 6}, 3.0), back = host.zeros(dtype, {4, 6});
    copy(test.stream(), source, there);
    set_zero(host.stream(), source);
    copy(test.stream(), there, back);
    EXPECT_EQ(values_of(back), std::vector<double>(24, 3.0));
  }
}

TEST_P(CopyOn, ZeroLeavesWhatLiesBetweenTheRows) {
  const auto [device, dtype] = GetParam();
  TestContext test(device);
  Tensor tensor = test.filled(dtype, {3, 4}, 2.0);
  set_zero(test.stream(), tensor.view().columns(1, 2));
  EXPECT_EQ(values_of(tensor), (std::vector<double>{2, 0, 0, 2, 2, 0, 0, 2, 2, 0, 0, 2}));
  set_zero(test.stream(), tensor);
  EXPECT_EQ(values_of(tensor), std::vector<double>(12, 0.0));
}

TEST_P(CopyOn, RefusesOtherShapesAndDtypes) {
  const auto [device, dtype] = GetParam();
  TestContext test(device);
  Tensor a = test.zeros(dtype, {2, 3}), b = test.zeros(dtype, {3, 2});
  Tensor c = test.zeros(DType::kI32, {2, 3});
  EXPECT_THROW(copy(test.stream(), a, b), ContractError);
  EXPECT_THROW(copy(test.stream(), a, c), ContractError);
}

TEST_P(CopyOn, NothingIsCopiedOfAnEmptyTensor) {
  const auto [device, dtype] = GetParam();
  TestContext test(device);
  Tensor a = test.zeros(dtype, {0, 3}), b = test.zeros(dtype, {0, 3});
  copy(test.stream(), a, b);
  set_zero(test.stream(), a);
  test.stream().synchronize();
}

INSTANTIATE_TEST_SUITE_P(Backends, CopyOn, testing::ValuesIn(test::backends()),
                         [](const auto& one) { return one.param.name(); });

}  // namespace
}  // namespace coppice
