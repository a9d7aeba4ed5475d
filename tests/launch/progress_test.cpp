// What progress looks like where there is no terminal, and how durations read.
#include "launch/progress.hpp"

#include <gtest/gtest.h>

namespace coppice::test {
namespace {

TEST(Progress, IsOneLinePerStepWithoutATerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress("step", 3, 1);
    progress.update(2, "loss 0.5");
    progress.note("saved");
    progress.update(3);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "step 2 of 3  loss 0.5\nsaved\nstep 3 of 3\n");
}

TEST(Progress, DurationsRoundToSecondsAndShowTwoUnits) {
  EXPECT_EQ(readable_duration(0.4), "0 s");
  EXPECT_EQ(readable_duration(59.4), "59 s");
  EXPECT_EQ(readable_duration(59.6), "1 min 00 s");
  EXPECT_EQ(readable_duration(3599.0), "59 min 59 s");
  EXPECT_EQ(readable_duration(7265.0), "2 h 01 min");
  EXPECT_EQ(readable_duration(-3.0), "0 s");
}

}  // namespace
}  // namespace coppice::test
