// Every collective on small integers, where each sum is exact and worked by formula: of host memory
// and, where the build has a CUDA backend, of device memory staged through the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/build_config.hpp"
#include "parallel/process_grid.hpp"
#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::Backend;
using test::TestContext;
using test::values_of;
using test::world_of;

// Rank r holds r + 1 rows but rank 1 none: shards are uneven and one is empty.
std::vector<std::int64_t> uneven_rows(int size) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rank == 1 ? 0 : rank + 1);
  return rows;
}

/// Types that are summed over ranks; staging does not look at them.
std::vector<Backend> collective_backends() {
  std::vector<Backend> all = {{Device{}, DType::kF32}, {Device{}, DType::kF64}};
  if constexpr (build::kWithCuda) all.push_back({test::kCudaDevice, DType::kF32});
  return all;
}

class MpiCollectives : public testing::TestWithParam<Backend> {};

TEST_P(MpiCollectives, AllReduceSumsAndTakesTheMaximum) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  const double n = comm->size(), me = comm->rank();
  Tensor sum = test.from(GetParam().dtype, {2}, {me, 1.0});
  comm->all_reduce(test.ctx().stream, sum, ReduceOp::kSum);
  EXPECT_EQ(values_of(sum.view()), (std::vector<double>{n * (n - 1) / 2, n}));
  Tensor most = test.from(GetParam().dtype, {2}, {me, -me});
  comm->all_reduce(test.ctx().stream, most, ReduceOp::kMax);
  EXPECT_EQ(values_of(most.view()), (std::vector<double>{n - 1, 0.0}));
}

TEST_P(MpiCollectives, AllGatherStacksUnevenShardsInRankOrder) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  const auto rows = uneven_rows(comm->size());
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const Tensor shard = test.filled(GetParam().dtype,
                                   {rows[static_cast<std::size_t>(comm->rank())], 3}, comm->rank());
  Tensor whole = test.filled(GetParam().dtype, {total, 3}, -1.0);
  comm->all_gather(test.ctx().stream, shard, whole, rows);
  std::vector<double> expected;
  for (int rank = 0; rank < comm->size(); ++rank) {
    expected.insert(expected.end(),
                    static_cast<std::size_t>(rows[static_cast<std::size_t>(rank)] * 3), rank);
  }
  EXPECT_EQ(values_of(whole.view()), expected);
}

TEST_P(MpiCollectives, ReduceScatterGivesEachRankItsRowsOfTheSum) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  const auto rows = uneven_rows(comm->size());
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  // Element i of rank r is (r + 1) i; the sum over ranks is i n (n + 1) / 2.
  std::vector<double> values(static_cast<std::size_t>(total * 3));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (comm->rank() + 1) * static_cast<double>(i);
  }
  const Tensor whole = test.from(GetParam().dtype, {total, 3}, values);
  const auto mine = static_cast<std::size_t>(comm->rank());
  Tensor shard = test.filled(GetParam().dtype, {rows[mine], 3}, -1.0);
  comm->reduce_scatter(test.ctx().stream, whole, shard, rows);
  const auto first = std::accumulate(rows.begin(), rows.begin() + comm->rank(), std::int64_t{0});
  const double n = comm->size();
  const auto got = values_of(shard.view());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i],
              static_cast<double>(first * 3 + static_cast<std::int64_t>(i)) * n * (n + 1) / 2);
  }
}

TEST_P(MpiCollectives, ReduceScatterMayPutTheSumWhereItLies) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  const auto rows = uneven_rows(comm->size());
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const auto mine = static_cast<std::size_t>(comm->rank());
  const auto first = std::accumulate(rows.begin(), rows.begin() + comm->rank(), std::int64_t{0});
  const Tensor whole = test.random(GetParam().dtype, {total, 3}, fmt::format("rank {}", mine));
  Tensor apart = test.zeros(GetParam().dtype, {rows[mine], 3});
  comm->reduce_scatter(test.ctx().stream, whole, apart, rows);
  Tensor same = test.random(GetParam().dtype, {total, 3}, fmt::format("rank {}", mine));
  const TensorView place = same.view().rows(first, rows[mine]);
  comm->reduce_scatter(test.ctx().stream, same, place, rows);
  EXPECT_TRUE(test::bit_equal(place, apart));
}

// Around the block of a rank's messages (1 MiB over the other ranks), with sums of every size and
// a rank that owns nothing. Values whose sum depends on the order: contributions are added in the
// order of the ranks. Mutations seen red: sums begun with the own values; a block of the own piece
// taken from its start; a block sent from its start.
TEST_P(MpiCollectives, LargeSumsAddUpInTheOrderOfTheRanks) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  const std::int64_t block = (std::int64_t{1} << 20) / size_of(GetParam().dtype);
  const auto of_rank = [&](int rank, std::int64_t count) {
    return test.random(GetParam().dtype, {count, 1}, fmt::format("large {}", rank));
  };
  for (const std::int64_t longest : {std::int64_t{30011}, block, block + 1}) {
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank + 1 < comm->size(); ++rank) rows.push_back(rank == 1 ? 0 : 101);
    rows.push_back(longest);
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    std::vector<double> sum = values_of(of_rank(0, total)), most = sum;
    for (int rank = 1; rank < comm->size(); ++rank) {
      const auto values = values_of(of_rank(rank, total));
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum[i] = GetParam().dtype == DType::kF32
                     ? static_cast<float>(sum[i]) + static_cast<float>(values[i])
                     : sum[i] + values[i];
        most[i] = std::max(most[i], values[i]);
      }
    }
    const Tensor mine = of_rank(comm->rank(), total);
    const auto me = static_cast<std::size_t>(comm->rank());
    const auto first = std::accumulate(rows.begin(), rows.begin() + comm->rank(), std::int64_t{0});
    Tensor shard = test.filled(GetParam().dtype, {rows[me], 1}, -1.0);
    comm->reduce_scatter(test.ctx().stream, mine, shard, rows);
    EXPECT_EQ(values_of(shard.view()),
              std::vector<double>(sum.begin() + first, sum.begin() + first + rows[me]));
    EXPECT_TRUE(test::bit_equal(mine, of_rank(comm->rank(), total))) << "the input is left alone";

    Tensor all = test.from(GetParam().dtype, {total, 1}, values_of(mine.view()));
    comm->all_reduce(test.ctx().stream, all, ReduceOp::kSum);
    EXPECT_EQ(values_of(all.view()), sum);
    Tensor largest = test.from(GetParam().dtype, {total, 1}, values_of(mine.view()));
    comm->all_reduce(test.ctx().stream, largest, ReduceOp::kMax);
    EXPECT_EQ(values_of(largest.view()), most);
  }
}

TEST_P(MpiCollectives, BroadcastTakesTheRootsValues) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  Tensor data = test.filled(GetParam().dtype, {2, 2}, comm->rank());
  comm->broadcast(test.ctx().stream, data, comm->size() - 1);
  EXPECT_EQ(values_of(data.view()), std::vector<double>(4, comm->size() - 1));
}

// Sums of values that do not add exactly: the order of summation shows in the bits.
TEST_P(MpiCollectives, ASumHasTheSameBitsOnEveryRankAndInEveryRun) {
  TestContext test(GetParam().device, 1);
  const auto comm = world_of(GetParam().device);
  std::vector<std::vector<double>> runs;
  for (int run = 0; run < 3; ++run) {
    Tensor data = test.random(GetParam().dtype, {10007}, fmt::format("rank {}", comm->rank()));
    comm->all_reduce(test.ctx().stream, data, ReduceOp::kSum);
    runs.push_back(values_of(data.view()));
    Tensor first(test.memory(), GetParam().dtype, {10007}, "test");
    const auto mine = values_of(data.view());
    first = test.from(GetParam().dtype, {10007}, mine);
    comm->broadcast(test.ctx().stream, first, 0);
    EXPECT_TRUE(test::bit_equal(first, data));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

INSTANTIATE_TEST_SUITE_P(Backends, MpiCollectives, testing::ValuesIn(collective_backends()),
                         [](const auto& backend) { return backend.param.name(); });

TEST(ProcessGridOverMpi, EveryAxisHoldsTheRanksThatDifferOnlyInIt) {
  auto& session = test::ranks_session();
  TestContext test(1);
  for (int tensor = 1; tensor <= session.size(); ++tensor) {
    for (int context = 1; tensor * context <= session.size(); ++context) {
      if (session.size() % (tensor * context) != 0) continue;
      const GridSizes sizes{tensor, context, session.size() / (tensor * context)};
      ProcessGrid grid(session, sizes, {.seconds = 60});
      const auto here = grid.coordinates();
      const auto check = [&](Communicator& comm, int size, int rank, auto same) {
        EXPECT_EQ(comm.size(), size);
        EXPECT_EQ(comm.rank(), rank);
        Tensor mine = test.filled(DType::kF64, {1}, session.rank());
        Tensor all = test.zeros(DType::kF64, {size});
        comm.all_gather(test.ctx().stream, mine, all);
        for (const double world_rank : values_of(all.view())) {
          EXPECT_TRUE(same(coordinates_of(static_cast<int>(world_rank), sizes)));
        }
      };
      check(grid.tensor(), sizes.tensor, here.tp_rank, [&](auto other) {
        return other.cp_rank == here.cp_rank && other.dp_rank == here.dp_rank;
      });
      check(grid.context(), sizes.context, here.cp_rank, [&](auto other) {
        return other.tp_rank == here.tp_rank && other.dp_rank == here.dp_rank;
      });
      check(grid.data(), sizes.data, here.dp_rank, [&](auto other) {
        return other.tp_rank == here.tp_rank && other.cp_rank == here.cp_rank;
      });
      check(grid.replicas(), sizes.data * sizes.context,
            here.dp_rank * sizes.context + here.cp_rank,
            [&](auto other) { return other.tp_rank == here.tp_rank; });
    }
  }
}

}  // namespace
}  // namespace coppice
