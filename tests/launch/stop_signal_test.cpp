// Signals: the first one is a wish, the second one ends the process, and nothing outlives the
// scope.
#include "launch/stop_signal.hpp"

#include <gtest/gtest.h>
#include <signal.h>

namespace coppice::test {
namespace {

TEST(StopSignal, TheFirstOneOnlyAsksToStop) {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    raise(number);
    EXPECT_TRUE(stop.requested());
  }
}

TEST(StopSignalDeathTest, ASecondOneEndsTheProcess) {
  const auto twice = [](int first, int second) {
    const StopSignal stop;
    raise(first);
    raise(second);
  };
  EXPECT_EXIT(twice(SIGINT, SIGINT), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignalDeathTest, AfterItsScopeASignalEndsTheProcessAsEver) {
  const auto after = [] {
    { const StopSignal stop; }
    raise(SIGTERM);
  };
  EXPECT_EXIT(after(), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace coppice::test
