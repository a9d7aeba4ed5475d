// Collectives that are started and awaited later: the bits, calls and bytes of blocking ones, in
// the order of their calls, whoever comes when.
#include <gmock/gmock.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "parallel/process_grid.hpp"
#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::ranks_session;
using test::TestContext;
using test::values_of;
using testing::AllOf;
using testing::HasSubstr;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::unique_ptr<Communicator> axis(const char* name, double seconds = 60) {
  return ranks_session().split(0, name, {.seconds = seconds});
}

std::vector<std::int64_t> rows_of_ranks(int size, std::int64_t longest) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rank == 1 ? 0 : longest - rank);
  return rows;
}

/// A sum, a gather and a scatter of this rank's own values, of a size that takes many messages.
struct Three {
  Three(TestContext& test, Communicator& comm, int round)
      : rows(rows_of_ranks(comm.size(), 70001)),
        total(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})),
        sum(test.random(DType::kF32, {30011}, fmt::format("sum {} {}", round, comm.rank()))),
        part(test.random(DType::kF32, {rows[static_cast<std::size_t>(comm.rank())], 3},
                         fmt::format("part {} {}", round, comm.rank()))),
        all(test.zeros(DType::kF32, {total, 3})),
        whole(test.random(DType::kF32, {total, 3}, fmt::format("whole {} {}", round, comm.rank()))),
        shard(test.zeros(DType::kF32, part.shape())) {}

  void run(Stream& stream, Communicator& comm) {
    comm.all_reduce(stream, sum, ReduceOp::kSum);
    comm.all_gather(stream, part, all, rows);
    comm.reduce_scatter(stream, whole, shard, rows);
  }
  std::vector<Pending> start(Stream& stream, Communicator& comm) {
    std::vector<Pending> pending;
    pending.push_back(comm.start_all_reduce(stream, sum, ReduceOp::kSum));
    pending.push_back(comm.start_all_gather(stream, part, all, rows));
    pending.push_back(comm.start_reduce_scatter(stream, whole, shard, rows));
    return pending;
  }

  std::vector<std::int64_t> rows;
  std::int64_t total;
  Tensor sum, part, all, whole, shard;
};

bool equal(const Three& a, const Three& b) {
  return test::bit_equal(a.sum, b.sum) && test::bit_equal(a.all, b.all) &&
         test::bit_equal(a.shard, b.shard);
}

// Mutations seen red: a finish that does not wait; a blocking call that does not take its turn.
TEST(Overlap, StartedCollectivesGiveTheBitsCallsAndBytesOfBlockingOnes) {
  TestContext test(1);
  const auto blocking = axis("blocking"), started = axis("started"), other = axis("other");
  std::vector<Three> expected, got;
  for (int round = 0; round < 3; ++round) {
    expected.emplace_back(test, *blocking, round);
    got.emplace_back(test, *started, round);
    expected.back().run(test.stream(), *blocking);
  }
  std::vector<Pending> pending;
  for (int round = 0; round < 3; ++round) {
    // Ranks come apart, so that some find the others' messages and some wait for them.
    sleep_seconds(0.002 * ((started->rank() + round) % 3));
    for (Pending& one : got[static_cast<std::size_t>(round)].start(test.stream(), *started))
      pending.push_back(std::move(one));
    // Another axis is free meanwhile.
    Tensor one = test.filled(DType::kF64, {1}, 1.0);
    other->all_reduce(test.stream(), one, ReduceOp::kSum);
    EXPECT_EQ(values_of(one.view())[0], other->size());
  }
  // On the same axis a blocking call comes behind what was started.
  Tensor one = test.filled(DType::kF64, {1}, 1.0);
  started->all_reduce(test.stream(), one, ReduceOp::kSum);
  EXPECT_EQ(values_of(one.view())[0], started->size());
  // Awaited in any order.
  for (std::size_t i = pending.size(); i-- > 0;) pending[i].finish(test.stream());
  pending.front().finish(test.stream());
  for (std::size_t round = 0; round < 3; ++round) EXPECT_TRUE(equal(got[round], expected[round]));
  for (const auto what :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    const auto& counted = started->counter(what);
    const auto extra = what == Collective::kAllReduce;
    EXPECT_EQ(counted.calls - extra, blocking->counter(what).calls);
    EXPECT_EQ(counted.bytes - (started->size() > 1 ? extra * 8 : 0), blocking->counter(what).bytes);
  }
}

TEST(Overlap, MayBeTurnedOff) {
  TestContext test(1);
  const auto comm = axis("off");
  comm->overlap(false);
  Three expected(test, *comm, 0), got(test, *comm, 0);
  expected.run(test.stream(), *comm);
  std::vector<Pending> done = got.start(test.stream(), *comm);
  EXPECT_TRUE(equal(got, expected));
}

// What one rank waits for while another computes is hidden where it was started before: the time of
// the collective counts only as far as it was waited for. Mutation seen red: a start that blocks.
TEST(Overlap, TakesNoTimeThatIsSpentElsewhere) {
  if (ranks_session().size() == 1) return;
  TestContext test(1);
  const auto comm = axis("hidden");
  Three three(test, *comm, 0);
  comm->barrier(test.stream());
  Trace trace(100);
  comm->trace_to(&trace, "hidden");
  Pending pending = comm->start_reduce_scatter(test.stream(), three.whole, three.shard, three.rows);
  sleep_seconds(comm->rank() == 0 ? 0.8 : 1.2);  // as if computing
  const auto before = std::chrono::steady_clock::now();
  pending.finish(test.stream());
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - before;
  EXPECT_LT(waited.count(), 0.3);
  EXPECT_LT(comm->counter(Collective::kReduceScatter).seconds, 0.3);
  // In the trace it lies beside the driver's events, which hold the wait.
  ASSERT_EQ(trace.background().size(), 1u);
  EXPECT_EQ(trace.background()[0].name, std::string("reduce_scatter"));
  EXPECT_EQ(trace.background()[0].facts.bytes, three.whole.size_bytes());
  ASSERT_EQ(trace.events().size(), 1u);
  EXPECT_EQ(trace.events()[0].kind, TraceKind::kWait);
  comm->trace_to(nullptr, "hidden");
}

// The rank that has not even started it is named, as in a collective that blocks.
TEST(Overlap, ARankThatDoesNotComeIsNamed) {
  const int size = ranks_session().size();
  if (size == 1) return;
  TestContext test(1);
  const auto patient = axis("world");
  const auto comm = axis("replicas", 0.6);
  Tensor data = test.filled(DType::kF32, {1000}, 1.0);
  patient->barrier(test.stream());
  const bool late = comm->rank() == 0;  // no test before made it give a wait up
  if (late) sleep_seconds(1.6);
  Pending pending = comm->start_all_reduce(test.stream(), data, ReduceOp::kSum);
  try {
    pending.finish(test.stream());
  } catch (const CommError& error) {
    EXPECT_FALSE(late);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("all_reduce over the replicas axis"),
                      HasSubstr("rank 0 (" + ranks_session().host() + ") has not entered")));
    // The late rank comes to its end all the same; nothing is read before.
    while (true) {
      try {
        pending.finish(test.stream());
        break;
      } catch (const CommError&) {
      }
    }
  }
  EXPECT_EQ(values_of(data.view())[0], size);
  for (int i = 0; i < 2; ++i) {
    patient->barrier(test.stream());
    sleep_seconds(0.05);
  }
}

}  // namespace
}  // namespace coppice
