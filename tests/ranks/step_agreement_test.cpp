// What ranks agree on about a step, with a figure of their own each.
#include "rl/step_agreement.hpp"

#include <gtest/gtest.h>

#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::TestContext;

ProcessGrid data_grid() {
  auto& session = test::ranks_session();
  return ProcessGrid(session, {1, 1, session.size()}, {.seconds = 60});
}

TEST(StepAgreement, OneRankThatSaysSoIsEnough) {
  TestContext test(1);
  ProcessGrid grid = data_grid();
  const int last = grid.world().size() - 1;
  EXPECT_TRUE(on_any_rank(test.ctx(), grid.world(), grid.world().rank() == last));
  EXPECT_TRUE(on_any_rank(test.ctx(), grid.world(), true));
  EXPECT_FALSE(on_any_rank(test.ctx(), grid.world(), false));
}

// Bytes beyond what f32 holds stay exact. Mutations seen red: figures in f32; sums for maxima.
TEST(StepAgreement, SecondsAndMemoryAreThoseOfTheSlowestAndTheFullestRank) {
  TestContext test(1);
  ProcessGrid grid = data_grid();
  const int me = grid.world().rank(), last = grid.world().size() - 1;
  StepMetrics metrics;
  metrics.loss = me;
  metrics.step_seconds = 10.0 + me;
  metrics.seconds = {.plan = 1.0 * me,
                     .forward = 2.0 * (last - me),
                     .backward = 3.0 * me,
                     .optimizer = 4.0 * me,
                     .reduce = 5.0 * me,
                     .checkpoint = {},
                     .old_logprobs = 6.0 * me};
  metrics.peak_memory_bytes = (std::int64_t{1} << 40) + me;
  metrics.peak_resident_bytes = (std::int64_t{1} << 41) + last - me;
  take_maxima(test.ctx(), grid.world(), metrics);
  EXPECT_EQ(metrics.step_seconds, 10.0 + last);
  EXPECT_EQ(metrics.seconds.plan, 1.0 * last);
  EXPECT_EQ(metrics.seconds.forward, 2.0 * last);
  EXPECT_EQ(metrics.seconds.backward, 3.0 * last);
  EXPECT_EQ(metrics.seconds.optimizer, 4.0 * last);
  EXPECT_EQ(metrics.seconds.reduce, 5.0 * last);
  EXPECT_EQ(metrics.seconds.old_logprobs, 6.0 * last);
  EXPECT_FALSE(metrics.seconds.checkpoint.has_value());
  EXPECT_EQ(metrics.peak_memory_bytes, (std::int64_t{1} << 40) + last);
  EXPECT_EQ(metrics.peak_resident_bytes, (std::int64_t{1} << 41) + last);
  EXPECT_EQ(metrics.loss, me) << "a figure that is no maximum";
}

// Rank r gathers r + 1 doubles over the replicas; what came before the meter's start is not told.
// Mutations seen red: counters since the start of the job; the most of a rank for the sum.
TEST(TrafficMeter, AddsUpWhatAllRanksSentSinceItsStart) {
  TestContext test(1);
  ProcessGrid grid = data_grid();
  const int size = grid.world().size(), me = grid.world().rank();
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rank + 1);
  const auto gather = [&] {
    const Tensor shard = test.zeros(DType::kF64, {me + 1});
    Tensor whole = test.zeros(DType::kF64, {size * (size + 1) / 2});
    grid.replicas().all_gather(test.ctx().stream, shard, whole, rows);
  };
  TrafficMeter meter(grid);
  gather();
  meter.restart();
  gather();
  gather();
  StepMetrics metrics;
  meter.put(test.ctx(), metrics);
  if (size == 1) {
    EXPECT_FALSE(metrics.communication_bytes.has_value());
    EXPECT_TRUE(metrics.communication.empty());
    return;
  }
  const std::int64_t bytes = 2 * 8 * size * (size + 1) / 2;
  EXPECT_EQ(metrics.communication_bytes, bytes);
  ASSERT_EQ(metrics.communication.size(), 3u);  // tensor, context and heads have one rank each
  for (const AxisTraffic& axis : metrics.communication) {
    const bool used = axis.axis == "replicas";
    EXPECT_EQ(axis.bytes, used ? bytes : 0) << axis.axis;
    EXPECT_EQ(axis.calls, used ? 2 : 0) << axis.axis;
    EXPECT_EQ(axis.seconds > 0, used) << axis.axis;
  }
}

}  // namespace
}  // namespace coppice
