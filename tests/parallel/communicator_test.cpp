#include "parallel/communicator.hpp"

#include <gtest/gtest.h>

#include <array>

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
}

TEST(SelfCommunicator, CallsAreCountedAndNothingIsSent) {
  TestContext test;
  const auto self = make_self_communicator();
  Tensor x = test.zeros(DType::kF64, {5});
  self->all_reduce(test.ctx().stream, x, ReduceOp::kMax);
  self->all_reduce(test.ctx().stream, x, ReduceOp::kSum);
  self->broadcast(test.ctx().stream, x, 0);
  EXPECT_EQ(self->counter(Collective::kAllReduce).calls, 2);
  EXPECT_EQ(self->counter(Collective::kAllReduce).bytes, 0);
  EXPECT_EQ(self->counter(Collective::kBroadcast).calls, 1);
  EXPECT_EQ(self->counter(Collective::kAllGather).calls, 0);
}

TEST(CommunicatorContract, RefusesTensorsThatDoNotFit) {
  TestContext test;
  const auto self = make_self_communicator();
  Stream& stream = test.ctx().stream;
  Tensor x = test.zeros(DType::kF32, {3, 2}), y = test.zeros(DType::kF32, {4, 2});
  const std::array<std::int64_t, 1> rows{3};
  EXPECT_THROW(self->all_gather(stream, x, y, rows), ContractError);
  EXPECT_THROW(self->reduce_scatter(stream, y, x, rows), ContractError);
  EXPECT_THROW(self->all_gather(stream, x, x, std::array<std::int64_t, 2>{1, 2}), ContractError);
  EXPECT_THROW(self->broadcast(stream, x, 1), ContractError);
  EXPECT_THROW(self->all_reduce(stream, x.view().columns(0, 1), ReduceOp::kSum), ContractError);
}

}  // namespace
}  // namespace coppice
