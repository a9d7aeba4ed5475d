#include "parallel/communicator.hpp"

#include <gtest/gtest.h>

#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::TestContext;

TEST(SelfCommunicator, SumsAreUnchangedAndGathersAreCopies) {
  TestContext test;
  const auto self = make_self_communicator();
  EXPECT_EQ(self->size(), 1);
  EXPECT_EQ(self->rank(), 0);
  const Tensor x = test.random(DType::kF32, {3, 2}, "x");
  Tensor y = test.zeros(DType::kF32, {3, 2});
  self->all_gather(test.ctx().stream, x, y);
  EXPECT_TRUE(bit_equal(x, y));
  self->all_reduce(test.ctx().stream, y, ReduceOp::kSum);
  EXPECT_TRUE(bit_equal(x, y));
  Tensor z = test.zeros(DType::kF32, {3, 2});
  self->reduce_scatter(test.ctx().stream, y, z);
  EXPECT_TRUE(bit_equal(x, z));
  EXPECT_THROW(self->broadcast(test.ctx().stream, z, 1), ContractError);
}

}  // namespace
}  // namespace coppice
