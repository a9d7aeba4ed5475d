// The adjoint identity of every conjugate pair: the sum over ranks of <F x, y> equals that of
// <x, F^T y>, a replicated side counted once. Small integers, so it is exact.
#include "parallel/regions.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::TestContext;
using test::values_of;

class Regions : public testing::TestWithParam<DType> {
 protected:
  Regions() : comm_(test::ranks_session().split(0, "tensor", {.seconds = 60})), test_(1) {}

  Tensor integers(Shape shape, int salt) {
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>((static_cast<int>(i) * 7 + salt * 13) % 11 - 5);
    }
    return test_.from(GetParam(), shape, values);
  }
  // Different on every rank.
  Tensor own(Shape shape, int salt) { return integers(shape, salt + 17 * (comm_->rank() + 1)); }

  static double dot(ConstTensorView a, ConstTensorView b) {
    const auto av = values_of(a), bv = values_of(b);
    return std::inner_product(av.begin(), av.end(), bv.begin(), 0.0);
  }
  double summed(double value) {
    Tensor sum = test_.from(DType::kF64, {1}, {value});
    comm_->all_reduce(ctx().stream, sum, ReduceOp::kSum);
    return values_of(sum.view())[0];
  }
  ExecContext& ctx() { return test_.ctx(); }
  std::int64_t size() const { return comm_->size(); }

  std::unique_ptr<Communicator> comm_;
  TestContext test_;
};

TEST_P(Regions, CopyToAndReduceFromAreAdjoint) {
  // Copy: one x for all, a y on every rank. Reduce is the same pair read the other way.
  const Tensor x = integers({3, 4}, 1), y = own({3, 4}, 2);
  const double forward = summed(dot(x, y));  // F x = x on every rank
  Tensor back = test_.from(GetParam(), {3, 4}, values_of(y.view()));
  CopyToTensorParallel::backward(ctx(), *comm_, back);
  EXPECT_EQ(forward, dot(x, back)) << "x is replicated: its side counts once";
  Tensor partial = test_.from(GetParam(), {3, 4}, values_of(y.view()));
  ReduceFromTensorParallel::forward(ctx(), *comm_, partial);
  EXPECT_EQ(dot(partial, x), forward);
}

TEST_P(Regions, GatherFromSequenceIsAdjointToItsBackward) {
  const Tensor x = own({2, 3}, 1), y = own({2 * size(), 3}, 2);
  Tensor whole = test_.zeros(GetParam(), {2 * size(), 3}), back = test_.zeros(GetParam(), {2, 3});
  GatherFromSequence::forward(ctx(), *comm_, x, whole);
  GatherFromSequence::backward(ctx(), *comm_, y, back);
  EXPECT_EQ(summed(dot(whole, y)), summed(dot(x, back)));
}

TEST_P(Regions, ReduceScatterToSequenceIsAdjointToItsBackward) {
  const Tensor x = own({2 * size(), 3}, 1), y = own({2, 3}, 2);
  Tensor shard = test_.zeros(GetParam(), {2, 3}), back = test_.zeros(GetParam(), {2 * size(), 3});
  ReduceScatterToSequence::forward(ctx(), *comm_, x, shard);
  ReduceScatterToSequence::backward(ctx(), *comm_, y, back);
  EXPECT_EQ(summed(dot(shard, y)), summed(dot(x, back)));
}

// Uneven, with a rank that shares nothing. Seen red when backward takes the next rank's rows.
TEST_P(Regions, GatherSharedRowsIsAdjointToItsBackward) {
  std::vector<std::int64_t> rows;
  for (std::int64_t rank = 0; rank < size(); ++rank) rows.push_back(rank == 1 ? 0 : 2 * rank + 1);
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const auto mine = rows[static_cast<std::size_t>(comm_->rank())];
  const Tensor x = own({mine, 4}, 1), y = own({total, 4}, 2);
  Tensor whole = test_.zeros(GetParam(), {total, 4}), back = test_.zeros(GetParam(), {mine, 4});
  GatherSharedRows::forward(ctx(), *comm_, x, whole, rows);
  GatherSharedRows::backward(ctx(), *comm_, y, back, rows);
  EXPECT_EQ(summed(dot(whole, y)), summed(dot(x, back)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Regions, testing::Values(DType::kF32, DType::kF64),
                         [](const testing::TestParamInfo<DType>& dtype) {
                           return dtype.param == DType::kF32 ? std::string("F32") : "F64";
                         });

}  // namespace
}  // namespace coppice
