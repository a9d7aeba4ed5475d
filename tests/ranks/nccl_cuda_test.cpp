// Collectives of devices over NCCL on several ranks: results, the order with the caller's stream
// under many schedules, and what must be noticed. On the emulated device every rank has a GPU of
// its own; on real ones the cases need as many GPUs as ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "core/copy.hpp"
#include "core/cuda/runtime.hpp"
#include "ranks/nccl_ranks.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using namespace test;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

using Values = std::vector<double>;

// Rank r holds r + 1 rows but rank 1 none.
std::vector<std::int64_t> uneven_rows(int size) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rank == 1 ? 0 : rank + 1);
  return rows;
}

class NcclOnCuda : public testing::TestWithParam<int> {
 protected:
  NcclOnCuda() : test_(device_of_this_rank()) {
    set_device_schedule(GetParam() == 0 ? 0 : GetParam() + 7 * ranks_session().rank());
  }
  ~NcclOnCuda() override { set_device_schedule(0); }
  Tensor from(DType dtype, Shape shape, const Values& values) {
    return test_.from(dtype, shape, values);
  }
  Stream& stream() { return test_.stream(); }

  TestContext test_;
  NcclAxis axis_;
  Communicator& comm_ = *axis_.comm;
  int size_ = comm_.size(), me_ = comm_.rank();
};

TEST_P(NcclOnCuda, AllReduceSumsAndTakesTheMaximum) {
  const double n = size_;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32}) {
    Tensor sum = from(dtype, {2}, {double(me_), 1});
    Tensor most = from(dtype, {2}, {double(me_), -double(me_)});
    comm_.all_reduce(stream(), sum, ReduceOp::kSum);
    comm_.all_reduce(stream(), most, ReduceOp::kMax);
    EXPECT_EQ(values_of(sum), (Values{n * (n - 1) / 2, n}));
    EXPECT_EQ(values_of(most), (Values{n - 1, 0}));
  }
}

TEST_P(NcclOnCuda, AllGatherStacksShardsInRankOrder) {
  for (const auto& rows : {uneven_rows(size_), std::vector<std::int64_t>(size_, 3)}) {
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const auto mine = rows[static_cast<std::size_t>(me_)];
    const auto first = std::accumulate(rows.begin(), rows.begin() + me_, std::int64_t{0});
    Values expected;
    for (int rank = 0; rank < size_; ++rank)
      expected.insert(expected.end(), static_cast<std::size_t>(rows[rank] * 3), rank);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const Tensor shard = test_.filled(dtype, {mine, 3}, me_);
      Tensor whole = test_.filled(dtype, {total, 3}, -1);
      comm_.all_gather(stream(), shard, whole, rows);
      EXPECT_EQ(values_of(whole), expected);
      Tensor in_place = test_.filled(dtype, {total, 3}, -1);
      copy(stream(), shard, in_place.view().rows(first, mine));
      comm_.all_gather(stream(), in_place.view().rows(first, mine), in_place, rows);
      EXPECT_EQ(values_of(in_place), expected);
    }
  }
}

// Bit for bit what the host's ranks sum, in their order: of two ranks always, of more on the
// emulated device alone.
TEST_P(NcclOnCuda, ReduceScatterGivesEachRankItsRowsOfTheSumAndLeavesTheRestAlone) {
  TestContext host(1);
  for (const auto& rows : {uneven_rows(size_), std::vector<std::int64_t>(size_, 5)}) {
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const auto mine = rows[static_cast<std::size_t>(me_)];
    const auto first = std::accumulate(rows.begin(), rows.begin() + me_, std::int64_t{0});
    const Tensor terms = host.random(DType::kF32, {total, 3}, fmt::format("rank {}", me_));
    Tensor expected = host.zeros(DType::kF32, {mine, 3});
    axis_.plain->reduce_scatter(host.stream(), terms, expected, rows);

    const Tensor whole = from(DType::kF32, {total, 3}, values_of(terms));
    Tensor shard = test_.filled(DType::kF32, {mine, 3}, -1);
    comm_.reduce_scatter(stream(), whole, shard, rows);
    EXPECT_EQ(values_of(shard), values_of(expected));
    EXPECT_EQ(values_of(whole), values_of(terms));

    Tensor in_place = from(DType::kF32, {total, 3}, values_of(terms));
    comm_.reduce_scatter(stream(), in_place, in_place.view().rows(first, mine), rows);
    EXPECT_EQ(values_of(in_place.view().rows(first, mine)), values_of(expected));
    const auto before = values_of(in_place.view().rows(0, first));
    EXPECT_EQ(before, values_of(terms.view().rows(0, first)));
  }
}

TEST_P(NcclOnCuda, BroadcastTakesTheRootsValues) {
  Tensor data = test_.filled(DType::kBF16, {2, 2}, me_);
  comm_.broadcast(stream(), data, size_ - 1);
  EXPECT_EQ(values_of(data), Values(4, size_ - 1));
}

// Without the host's help: everything is enqueued before anything is looked at.
TEST_P(NcclOnCuda, WorksOnWhatTheStreamWroteAndShowsItToWhatComesAfter) {
  const Tensor source = from(DType::kF32, {3}, {1, 2, double(me_)}),
               other = from(DType::kF32, {3}, {7, 8, 9});
  Tensor x = test_.zeros(DType::kF32, {3}), y = test_.zeros(DType::kF32, {3});
  std::vector<Tensor> wholes;
  for (int i = 0; i < 4; ++i) {
    copy(stream(), source, x);
    comm_.all_reduce(stream(), x, ReduceOp::kSum);
    copy(stream(), x, y);
    wholes.push_back(test_.zeros(DType::kF32, {3 * size_}));
    comm_.all_gather(stream(), y, wholes.back());
    copy(stream(), other, x);
    copy(stream(), other, y);
  }
  Values sums;
  for (int rank = 0; rank < size_; ++rank)
    sums.insert(sums.end(), {double(size_), 2.0 * size_, size_ * (size_ - 1) / 2.0});
  for (const Tensor& whole : wholes) EXPECT_EQ(values_of(whole), sums);
  EXPECT_EQ(values_of(x), values_of(other));
}

TEST_P(NcclOnCuda, TensorsOfTheHostGoOverMpi) {
  TestContext host(1);
  Tensor x = host.from(DType::kF64, {1}, {double(me_)});
  comm_.all_reduce(stream(), x, ReduceOp::kSum);
  EXPECT_EQ(values_of(x), (Values{size_ * (size_ - 1) / 2.0}));
}

// A rank may go on to MPI while others still wait for its device. Seen red (a hang): an emulated
// device that does not work while its host waits in MPI.
TEST_P(NcclOnCuda, ADeviceTakesPartWhileItsHostWaitsElsewhere) {
  Tensor x = test_.filled(DType::kF32, {4}, 1);
  comm_.all_reduce(stream(), x, ReduceOp::kSum);
  if (me_ != 0) stream().synchronize();
  axis_.plain->barrier(stream());
  EXPECT_EQ(values_of(x), Values(4, size_));
}

TEST_P(NcclOnCuda, EmptyTensorsSendNothing) {
  Tensor none = test_.zeros(DType::kF32, {0, 3}), whole = test_.zeros(DType::kF32, {0, 3});
  comm_.all_reduce(stream(), none, ReduceOp::kSum);
  comm_.all_gather(stream(), none, whole);
  comm_.reduce_scatter(stream(), whole, none);
  stream().synchronize();
}

TEST_P(NcclOnCuda, CountsWhatTheCallerHandedIn) {
  Tensor x = test_.zeros(DType::kF32, {3}), whole = test_.zeros(DType::kF32, {3 * size_});
  comm_.all_reduce(stream(), x, ReduceOp::kSum);
  comm_.all_gather(stream(), x, whole);
  comm_.reduce_scatter(stream(), whole, x);
  EXPECT_EQ(comm_.counter(Collective::kAllReduce).bytes, 12);
  EXPECT_EQ(comm_.counter(Collective::kAllGather).bytes, 12);
  EXPECT_EQ(comm_.counter(Collective::kReduceScatter).bytes, 12 * size_);
  EXPECT_EQ(comm_.counter(Collective::kReduceScatter).calls, 1);
  stream().synchronize();
}

// What a training step starts and awaits, of this rank's own values: written by the stream just
// before, and read by it just behind.
struct Started {
  Started(TestContext& test, Communicator& comm, int round)
      : rows(uneven_rows(comm.size())),
        total(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) {
    const std::int64_t mine = rows[static_cast<std::size_t>(comm.rank())];
    for (const Shape& shape : {Shape{301}, Shape{mine, 3}, Shape{total, 3}}) {
      const auto name = fmt::format("input {} {} {}", inputs.size(), round, comm.rank());
      sources.push_back(test.random(DType::kF32, shape, name));
      inputs.push_back(test.zeros(DType::kF32, shape));
    }
    results.push_back(test.zeros(DType::kF32, {total, 3}));
    results.push_back(test.zeros(DType::kF32, {mine, 3}));
    for (const Tensor* result : {&inputs[0], &results[0], &results[1]})
      seen.push_back(test.zeros(DType::kF32, result->shape()));
  }

  void run(Stream& stream, Communicator& comm) {
    write(stream);
    comm.all_reduce(stream, inputs[0], ReduceOp::kSum);
    comm.all_gather(stream, inputs[1], results[0], rows);
    comm.reduce_scatter(stream, inputs[2], results[1], rows);
    read(stream);
  }
  std::vector<Pending> start(Stream& stream, Communicator& comm) {
    write(stream);
    std::vector<Pending> pending;
    pending.push_back(comm.start_all_reduce(stream, inputs[0], ReduceOp::kSum));
    pending.push_back(comm.start_all_gather(stream, inputs[1], results[0], rows));
    pending.push_back(comm.start_reduce_scatter(stream, inputs[2], results[1], rows));
    return pending;
  }
  void write(Stream& stream) {
    for (std::size_t i = 0; i < inputs.size(); ++i) copy(stream, sources[i], inputs[i]);
  }
  void read(Stream& stream) {
    copy(stream, inputs[0], seen[0]);
    copy(stream, results[0], seen[1]);
    copy(stream, results[1], seen[2]);
  }
  friend bool operator==(const Started& a, const Started& b) {
    return bit_equal(a.seen[0], b.seen[0]) && bit_equal(a.seen[1], b.seen[1]) &&
           bit_equal(a.seen[2], b.seen[2]);
  }

  std::vector<std::int64_t> rows;
  std::int64_t total;
  std::vector<Tensor> sources, inputs, results, seen;
};

// Mutation seen red: a finish() that does not wait; a start() whose stream does not.
TEST_P(NcclOnCuda, StartedCollectivesGiveTheBitsCallsAndBytesOfBlockingOnes) {
  NcclAxis started(60, "replicas");
  Trace trace(1000);
  started.comm->trace_to(&trace, "replicas");
  std::vector<Started> expected, got;
  std::vector<Pending> pending;
  Tensor beside = test_.filled(DType::kF32, {16}, me_), one = test_.filled(DType::kF32, {1}, 1);
  for (int round = 0; round < 3; ++round) {
    expected.emplace_back(test_, comm_, round);
    got.emplace_back(test_, comm_, round);
    for (Pending& each : got.back().start(stream(), *started.comm))
      pending.push_back(std::move(each));
    // Another axis goes on meanwhile.
    expected.back().run(stream(), comm_);
    comm_.all_reduce(stream(), beside, ReduceOp::kMax);
  }
  // The last are awaited and read before anything else is asked of their axis.
  for (std::size_t i = pending.size(); i-- > 6;) pending[i].finish(stream());
  got.back().read(stream());
  // On the same axis a blocking call comes behind what was started.
  started.comm->all_reduce(stream(), one, ReduceOp::kSum);
  for (std::size_t i = 6; i-- > 0;) pending[i].finish(stream());
  pending.front().finish(stream());
  got[0].read(stream());
  got[1].read(stream());
  EXPECT_EQ(values_of(one), Values(1, size_));
  EXPECT_EQ(values_of(beside), Values(16, size_ - 1));
  for (std::size_t round = 0; round < 3; ++round) EXPECT_TRUE(got[round] == expected[round]);
  const auto calls = [](Communicator& comm, Collective what) { return comm.counter(what).calls; };
  for (const auto what : {Collective::kAllGather, Collective::kReduceScatter}) {
    EXPECT_EQ(calls(*started.comm, what), calls(comm_, what));
    EXPECT_EQ(started.comm->counter(what).bytes, comm_.counter(what).bytes);
  }
  // The host's part of each: that it was enqueued, and that the stream was told to wait.
  const auto of_kind = [&](TraceKind kind) {
    return std::ranges::count(trace.events(), kind, &TraceEvent::kind);
  };
  EXPECT_EQ(of_kind(TraceKind::kCollective), 10);
  EXPECT_EQ(of_kind(TraceKind::kWait), 9);
  started.comm->trace_to(nullptr, "replicas");
}

TEST_P(NcclOnCuda, OverlapMayBeTurnedOff) {
  comm_.overlap(false);
  Started expected(test_, comm_, 0), got(test_, comm_, 0);
  expected.run(stream(), comm_);
  const std::vector<Pending> done = got.start(stream(), comm_);
  got.read(stream());
  EXPECT_TRUE(got == expected);
}

INSTANTIATE_TEST_SUITE_P(Schedules, NcclOnCuda, testing::Range(0, 6));

}  // namespace
}  // namespace coppice
