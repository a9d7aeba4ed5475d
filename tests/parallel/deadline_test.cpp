// A bound for calls that block: what it does when it is missed, and that it leaves nothing when
// met.
#include "parallel/mpi/deadline.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace coppice::test {
namespace {

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(DeadlineDeathTest, EndsTheProcessWithALineWhenItIsMissed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto block = [] {
    const Deadline deadline("the start of MPI", 0.05, [](const std::string& text) {
      std::fprintf(stderr, "%s\n", text.c_str());
    });
    sleep_seconds(30);
  };
  EXPECT_EXIT(block(), testing::ExitedWithCode(1), "the start of MPI has not ended in 0 s");
}

TEST(Deadline, IsForgottenWhenItIsMet) {
  bool told = false;
  for (int i = 0; i < 20; ++i) {
    const Deadline deadline("work", 0.2, [&](const std::string&) { told = true; });
  }
  sleep_seconds(0.4);
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace coppice::test
