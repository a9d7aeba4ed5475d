#pragma once
// What tests of mistakes over the emulated NCCL start from: a seed for each, what the host is told,
// and an end of which nobody is left out.
#include <gmock/gmock.h>

#include <string>

#include "core/cuda/emulated/gpu.hpp"
#include "ranks/nccl_ranks.hpp"

namespace coppice::test {

/// Seconds for which a rank waits for one that has failed.
inline constexpr double kImpatient = 2;

/// Lets a test reach what is under an axis.
class BreakableNccl : public NcclCommunicator {
 public:
  using NcclCommunicator::connection;
  using NcclCommunicator::NcclCommunicator;
  /// Where the device has failed, so that the end need not wait for what it has dropped.
  void give_up() { nccl::abort(connection()); }
};

class NcclMistakesOnCuda : public testing::Test {
 protected:
  ~NcclMistakesOnCuda() override { emulated::gpu().options = {}; }
  static int me() { return ranks_session().rank(); }
  static int size() { return ranks_session().size(); }

  /// What the host is told when it waits for what `body` enqueues; "" where nothing is wrong.
  template <class Body>
  static std::string complaint(TestContext& test, Body&& body) {
    try {
      body();
      test.stream().synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  /// All ranks have come here: nobody waits for another's last collective any more.
  static void meet() {
    const auto comm = ranks_session().split(0, "world", {.seconds = 60});
    TestContext host(1);
    comm->barrier(host.stream());
  }
};

}  // namespace coppice::test
