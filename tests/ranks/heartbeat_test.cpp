// Waits that take too long: who is named, and that a late rank is forgotten once it has come. On
// one rank nobody waits.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "parallel/process_grid.hpp"
#include "ranks/ranks_session.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::ranks_session;
using test::TestContext;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// What the watchdog of this rank says while rank `late` sleeps; "" on that rank. A barrier, because
// MPI finishes one that was given up, and the next begins in order.
std::string complaint(TestContext& test, Communicator& comm, int late, double seconds) {
  std::string text;
  if (comm.rank() == late) {
    sleep_seconds(seconds);
    comm.barrier(test.ctx().stream);
    return text;
  }
  try {
    comm.barrier(test.ctx().stream);
  } catch (const CommError& error) {
    text = error.what();
  }
  return text;
}

TEST(Heartbeat, AsksNothingOfRanksThatComeInTime) {
  TestContext test(1);
  std::string told;
  const auto comm =
      ranks_session().split(0, "world",
                            {.seconds = 60,
                             .stop_requested = [] { return true; },
                             .notice = [&](const std::string& text) { told = text; }});
  for (int i = 0; i < 20; ++i) comm->barrier(test.ctx().stream);
  EXPECT_EQ(told, "");
}

// What a rank says when mpirun asks it to stop because a peer was killed. Only the first of those
// that wait speaks.
TEST(Heartbeat, ARankAskedToStopSaysWhomItWaitsFor) {
  const int size = ranks_session().size();
  if (size == 1) return;
  TestContext test(1);
  std::string told;
  const auto comm =
      ranks_session().split(0, "tensor",
                            {.seconds = 60,
                             .stop_requested = [] { return true; },
                             .notice = [&](const std::string& text) { told = text; }});
  if (comm->rank() == size - 1) sleep_seconds(1.2);
  comm->barrier(test.ctx().stream);
  if (comm->rank() == 0)
    EXPECT_THAT(told,
                AllOf(HasSubstr("asked to stop while waiting in barrier over the tensor axis"),
                      HasSubstr("rank " + std::to_string(size - 1)), HasSubstr("not entered")));
  else
    EXPECT_EQ(told, "");
}

// Seen red: announcements that are not listened to (every rank named as silent); those of a wait
// long over counted as if they were of this one (the late rank not named); no answer to another's
// announcement (a rank that waits since a short while named too).
TEST(Heartbeat, NamesTheRankThatHasNotComeAndThatTheOthersWait) {
  const int size = ranks_session().size();
  if (size == 1) return;
  TestContext test(1);
  const auto patient = ranks_session().split(0, "world", {.seconds = 60});
  const auto comm = ranks_session().split(0, "replicas", {.seconds = 0.6});
  Activity& activity = ranks_session().activity();
  activity = {.step = 7, .phase = "backward", .layer = 3};
  for (const int late : {1, 0}) {
    // Ranks wait long, but not too long, for the one that will be waited for in vain below.
    if (comm->rank() == 1 - late) sleep_seconds(0.4);
    comm->barrier(test.ctx().stream);
    // One comes long after the first, and is heard all the same.
    if (size > 2 && comm->rank() == 2) sleep_seconds(0.35);
    const std::string text = complaint(test, *comm, late, 1.6);
    if (comm->rank() != late) {
      EXPECT_THAT(
          text,
          AllOf(HasSubstr("barrier over the replicas axis, step 7, backward, layer 3 (0 bytes) "
                          "has not finished in"),
                HasSubstr("rank " + std::to_string(late) + " (" + ranks_session().host() +
                          ") has not entered")));
      if (size > 2) {
        EXPECT_THAT(text, HasSubstr(") waits in "));
      }
    }
    // All come; whoever gave up the barrier has it finished by MPI meanwhile.
    for (int i = 0; i < 2; ++i) {
      patient->barrier(test.ctx().stream);
      sleep_seconds(0.05);
    }
  }
  activity = {};
}

TEST(Gather, GivesEveryRankTheWordsOfAllOrNothingInTime) {
  MpiSession& session = ranks_session();
  const auto words = session.gather(std::string(static_cast<std::size_t>(session.rank()), 'x'), {});
  ASSERT_TRUE(words);
  ASSERT_EQ(std::ssize(*words), session.size());
  for (std::size_t rank = 0; rank < words->size(); ++rank) EXPECT_EQ((*words)[rank].size(), rank);
}

}  // namespace
}  // namespace coppice
