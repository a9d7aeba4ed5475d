// Every wait of the staged communicator is needed: with one left out, the emulated device shows
// other values under some seed. Each case is a mutation kept.
#include <gtest/gtest.h>

#include "core/copy.hpp"
#include "core/cuda/emulated/gpu.hpp"
#include "parallel/doubling_host.hpp"
#include "parallel/staged_communicator.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::DoublingHost;
using test::kCudaDevice;
using test::TestContext;
using test::values_of;

constexpr std::uint64_t kSeeds = 24;

enum class Spoilt { kNothing, kCopiedOut, kCopiedBack };

class SpoiltStaging final : public StagedCommunicator {
 public:
  SpoiltStaging(std::unique_ptr<Communicator> host, Spoilt spoilt)
      : StagedCommunicator(std::move(host)), spoilt_(spoilt) {}

 private:
  void wait(const Event& event, Wait what) override {
    if (what == Wait::kCopiedOut && spoilt_ == Spoilt::kCopiedOut) return;
    if (what == Wait::kCopiedBack && spoilt_ == Spoilt::kCopiedBack) return;
    StagedCommunicator::wait(event, what);
  }
  Spoilt spoilt_;
};

class StagedWaitsOnCuda : public testing::Test {
 protected:
  ~StagedWaitsOnCuda() override { emulated::gpu().options = {}; }

  // Under how many seeds a sum of what the stream writes, and two broadcasts behind it, go wrong.
  static std::uint64_t seeds_that_fail(Spoilt spoilt) {
    std::uint64_t failures = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      emulated::gpu().options.seed = seed;
      TestContext test(kCudaDevice);
      auto owned = std::make_unique<DoublingHost>();
      DoublingHost& host = *owned;
      SpoiltStaging comm(std::move(owned), spoilt);
      const Tensor source = test.filled(DType::kF32, {16}, 5.0);
      Tensor sum = test.zeros(DType::kF32, {16}), first = test.zeros(DType::kF32, {16}),
             second = test.zeros(DType::kF32, {16});
      copy(test.stream(), source, sum);
      comm.all_reduce(test.stream(), sum, ReduceOp::kSum);
      host.sent = 1;
      comm.broadcast(test.stream(), first, 0);
      host.sent = 2;
      comm.broadcast(test.stream(), second, 0);
      const bool right = values_of(sum) == std::vector<double>(16, 10.0) &&
                         values_of(first) == std::vector<double>(16, 1.0) &&
                         values_of(second) == std::vector<double>(16, 2.0);
      failures += right ? 0 : 1;
    }
    return failures;
  }
};

TEST_F(StagedWaitsOnCuda, WithAllOfThemEverySeedShowsTheSameValues) {
  EXPECT_EQ(seeds_that_fail(Spoilt::kNothing), 0U);
}

TEST_F(StagedWaitsOnCuda, SendingBeforeTheDevicesValuesHaveComeIsCaught) {
  EXPECT_GE(seeds_that_fail(Spoilt::kCopiedOut), kSeeds / 4);
}

TEST_F(StagedWaitsOnCuda, ReceivingOverAResultThatTheDeviceHasNotFetchedIsCaught) {
  EXPECT_GE(seeds_that_fail(Spoilt::kCopiedBack), kSeeds / 4);
}

}  // namespace
}  // namespace coppice
