#include "core/parallel_for.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "core/cpu/tile_gemm.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::TestContext;

TEST(ParallelFor, RunsEveryBodyOnceForAnyThreadCount) {
  for (const int threads : {1, 2, 3, 8}) {
    TestContext test(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      parallel_for(test.ctx(), count, [&](std::int64_t i) { ++seen[static_cast<std::size_t>(i)]; });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(ParallelFor, RangesCoverEverythingOnceAndKeepTheirGrain) {
  for (const int threads : {1, 2, 3}) {
    TestContext test(threads);
    for (const std::int64_t count : {0, 1, 10, 11, 100}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      parallel_for_ranges(test.ctx(), count, 10, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_GE(end - begin, std::min<std::int64_t>(count, 10));
        for (auto i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(ParallelFor, AnExceptionReachesTheCaller) {
  for (const int threads : {1, 2}) {
    TestContext test(threads);
    EXPECT_THROW(parallel_for(test.ctx(), 10,
                              [](std::int64_t i) {
                                if (i == 3) throw IoError("body 3");
                              }),
                 IoError);
  }
}

TEST(ParallelFor, AMultiplicationInABodyGivesTheSameBitsForAnyThreadCount) {
  // Long sums and few outputs: a library that used several threads would cut the sum.
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    TestContext test(threads);
    const Tensor a = test.random(DType::kF32, {8, 20000}, "a");
    const Tensor b = test.random(DType::kF32, {20000, 8}, "b");
    Tensor c = test.zeros(DType::kF32, {3, 64});
    parallel_for(test.ctx(), 3, [&](std::int64_t i) {
      cpu::tile_gemm(Transpose::kNo, Transpose::kNo, 8, 8, 20000, 1.0F, a.view().data<float>(),
                     20000, b.view().data<float>(), 8, 0.0F, c.view().data<float>() + i * 64, 8);
    });
    results.push_back(test::values_of(c.view()));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace coppice
