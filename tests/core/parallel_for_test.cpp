#include "core/parallel_for.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

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

// Seen red without omp_set_num_threads(1) in parallel_for.hpp: a body that runs alone would be
// offered every thread, and a library's sums would depend on their number.
TEST(ParallelFor, ALibraryCalledInABodyIsOfferedOneThread) {
  for (const int threads : {1, 2, 3}) {
    TestContext test(threads);
    const int before = omp_get_max_threads();
    parallel_for(test.ctx(), 3, [](std::int64_t) { EXPECT_EQ(omp_get_max_threads(), 1); });
    EXPECT_EQ(omp_get_max_threads(), before) << "the setting ends with the loop";
  }
}

}  // namespace
}  // namespace coppice
