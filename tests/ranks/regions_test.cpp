// The adjoint identity of every conjugate pair: the sum over ranks of <F x, y> equals that of
// <x, F^T y>, a replicated side counted once. Small integers, so it is exact, in bf16 too: there a
// rank's part of a sum is f32.
#include "parallel/regions.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::Backend;
using test::TestContext;
using test::values_of;

class Regions : public testing::TestWithParam<Backend> {
 protected:
  Regions() : comm_(test::world_of(GetParam().device, "tensor")), test_(GetParam().device, 1) {}

  // How activations are stored; how a rank's part of their sum is; how sums within a rank are.
  DType stored() const { return GetParam().dtype; }
  DType partial() const { return partial_dtype(*comm_, stored()); }
  DType summed_in() const { return accumulation_of(stored()); }

  Tensor integers(DType dtype, Shape shape, int salt) {
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>((static_cast<int>(i) * 7 + salt * 13) % 11 - 5);
    }
    return test_.from(dtype, shape, values);
  }
  // Different on every rank.
  Tensor own(DType dtype, Shape shape, int salt) {
    return integers(dtype, shape, salt + 17 * (comm_->rank() + 1));
  }

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
  std::vector<std::int64_t> uneven_rows() const {
    std::vector<std::int64_t> rows;
    for (std::int64_t rank = 0; rank < size(); ++rank) rows.push_back(rank == 1 ? 0 : 2 * rank + 1);
    return rows;
  }

  std::unique_ptr<Communicator> comm_;
  TestContext test_;
};

TEST_P(Regions, CopyToAndReduceFromAreAdjoint) {
  // Copy: one x for all, a y on every rank. Reduce is the same pair read the other way.
  const Tensor x = integers(stored(), {3, 4}, 1), y = own(stored(), {3, 4}, 2);
  const double forward = summed(dot(x, y));  // F x = x on every rank
  Tensor part = own(partial(), {3, 4}, 2), back = test_.zeros(stored(), {3, 4});
  CopyToTensorParallel::backward(ctx(), *comm_, part, back);
  EXPECT_EQ(forward, dot(x, back)) << "x is replicated: its side counts once";
  Tensor again = own(partial(), {3, 4}, 2), sum = test_.zeros(stored(), {3, 4});
  ReduceFromTensorParallel::forward(ctx(), *comm_, again, sum);
  EXPECT_EQ(dot(sum, x), forward);
}

// Where ranks add up what they store, parts need no memory of their own.
TEST_P(Regions, SumsMayBeMadeInPlace) {
  if (partial() != stored()) return;  // parts of another type have memory of their own
  Tensor x = own(stored(), {3, 4}, 1);
  Tensor apart = own(stored(), {3, 4}, 1), sum = test_.zeros(stored(), {3, 4});
  ReduceFromTensorParallel::forward(ctx(), *comm_, x, x);
  ReduceFromTensorParallel::forward(ctx(), *comm_, apart, sum);
  EXPECT_TRUE(test::bit_equal(x, sum));
}

TEST_P(Regions, GatherFromSequenceIsAdjointToItsBackward) {
  const Tensor x = own(stored(), {2, 3}, 1);
  Tensor y = own(partial(), {2 * size(), 3}, 2);
  Tensor whole = test_.zeros(stored(), {2 * size(), 3}), back = test_.zeros(stored(), {2, 3});
  GatherFromSequence::forward(ctx(), *comm_, x, whole);
  const double forward = summed(dot(whole, y));
  GatherFromSequence::backward(ctx(), *comm_, y, back);
  EXPECT_EQ(forward, summed(dot(x, back)));
}

TEST_P(Regions, ReduceScatterToSequenceIsAdjointToItsBackward) {
  Tensor x = own(partial(), {2 * size(), 3}, 1);
  const Tensor y = own(stored(), {2, 3}, 2);
  Tensor shard = test_.zeros(stored(), {2, 3}), back = test_.zeros(stored(), {2 * size(), 3});
  ReduceScatterToSequence::backward(ctx(), *comm_, y, back);
  const double backward = summed(dot(x, back));
  ReduceScatterToSequence::forward(ctx(), *comm_, x, shard);
  EXPECT_EQ(summed(dot(shard, y)), backward);
}

// Uneven, with a rank that shares nothing. Seen red when backward takes the next rank's rows.
TEST_P(Regions, GatherSharedRowsIsAdjointToItsBackward) {
  const auto rows = uneven_rows();
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const auto mine = rows[static_cast<std::size_t>(comm_->rank())];
  const Tensor x = own(stored(), {mine, 4}, 1), y = own(summed_in(), {total, 4}, 2);
  Tensor whole = test_.zeros(stored(), {total, 4}), back = test_.zeros(summed_in(), {mine, 4});
  GatherSharedRows::forward(ctx(), *comm_, x, whole, rows);
  GatherSharedRows::backward(ctx(), *comm_, y, back, rows);
  EXPECT_EQ(summed(dot(whole, y)), summed(dot(x, back)));
}

// Parts whose sum is not a bf16: added up in f32 in the order of the ranks, and rounded at the end
// alone. Seen red with parts rounded before they are added up.
TEST_P(Regions, SumsAreRoundedOnce) {
  constexpr std::int64_t kWidth = 64;
  const auto rows = uneven_rows();
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const auto mine = rows[static_cast<std::size_t>(comm_->rank())];
  const auto part_of = [&](int rank) {
    return test_.random(partial(), {total, kWidth}, fmt::format("part {}", rank));
  };
  auto sums = values_of(part_of(0));
  for (int rank = 1; rank < comm_->size(); ++rank) {
    const auto part = values_of(part_of(rank));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = test::rounded({sums[i] + part[i]}, partial())[0];
    }
  }
  sums = test::rounded(sums, stored());
  Tensor part = part_of(comm_->rank()), sum = test_.zeros(stored(), {total, kWidth});
  ReduceFromTensorParallel::forward(ctx(), *comm_, part, sum);
  EXPECT_EQ(values_of(sum), sums);
  Tensor whole = part_of(comm_->rank()), shard = test_.zeros(stored(), {mine, kWidth});
  GatherFromSequence::backward(ctx(), *comm_, whole, shard, rows);
  const auto first =
      kWidth * std::accumulate(rows.begin(), rows.begin() + comm_->rank(), std::int64_t{0});
  EXPECT_EQ(values_of(shard),
            std::vector<double>(sums.begin() + first, sums.begin() + first + kWidth * mine));
}

INSTANTIATE_TEST_SUITE_P(Backends, Regions, testing::ValuesIn(test::backends()),
                         [](const auto& backend) { return backend.param.name(); });

}  // namespace
}  // namespace coppice
