// What must be ordered with collectives on other streams, and is not: mistakes kept as tests, each
// of which on a GPU would give other values now and then. The emulated device names what was
// touched, by what, and the collective that uses it.
#include <cmath>
#include <functional>

#include "core/convert.hpp"
#include "core/copy.hpp"
#include "core/cuda/runtime.hpp"
#include "ranks/nccl_mistakes.hpp"

namespace coppice {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

using Values = std::vector<double>;
constexpr std::uint64_t kSeeds = 8;

enum class Spoilt { kNothing, kInputs, kResults };

class SpoiltNccl final : public BreakableNccl {
 public:
  SpoiltNccl(std::unique_ptr<Communicator> host, std::string axis, Device device,
             std::shared_ptr<NcclWatch> watch, Spoilt spoilt)
      : BreakableNccl(std::move(host), std::move(axis), device, std::move(watch)),
        spoilt_(spoilt) {}

 private:
  void order(const Event& earlier, Stream& later, Order what) override {
    if (what == Order::kAfterInputs && spoilt_ == Spoilt::kInputs) return;
    if (what == Order::kBeforeResults && spoilt_ == Spoilt::kResults) return;
    NcclCommunicator::order(earlier, later, what);
  }
  Spoilt spoilt_;
};

// Under how many seeds a sum of what the stream writes is noticed to go wrong on some rank. What is
// said of it holds `words`, but for a rank whose peers have given up.
std::uint64_t seeds_noticed(Spoilt spoilt, const std::string& words, bool is_started) {
  std::uint64_t noticed = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    emulated::gpu().options.seed = seed + 1000 * static_cast<std::uint64_t>(ranks_session().rank());
    double wrong = 0;
    const auto plain = ranks_session().split(0, "world", {.seconds = 60});
    {
      TestContext test(kCudaDevice);
      NcclAxisOf<SpoiltNccl> axis(kImpatient, "tensor", spoilt);
      const Tensor source = test.filled(DType::kF32, {16}, 5),
                   other = test.filled(DType::kF32, {16}, 3);
      Tensor sum = test.zeros(DType::kF32, {16}), seen = test.zeros(DType::kF32, {16});
      test.stream().synchronize();
      try {
        copy(test.stream(), source, sum);
        Pending pending;
        if (is_started) {
          pending = axis.comm->start_all_reduce(test.stream(), sum, ReduceOp::kSum);
          pending.finish(test.stream());
        } else {
          axis.comm->all_reduce(test.stream(), sum, ReduceOp::kSum);
        }
        copy(test.stream(), sum, seen);
        copy(test.stream(), other, sum);
        wrong = values_of(seen) != Values(16, 5 * ranks_session().size()) ||
                values_of(sum) != Values(16, 3);
        cuda::synchronize_device(kCudaDevice);
        wrong = wrong != 0 || values_of(sum) != Values(16, 3);
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("over the tensor axis"));
        wrong = 1;
      } catch (const DeviceError& error) {
        EXPECT_THAT(error.what(), HasSubstr(words));
        wrong = 1;
        static_cast<SpoiltNccl&>(*axis.comm).give_up();
      }
    }
    TestContext host(1);
    Tensor anywhere = host.from(DType::kF64, {1}, {wrong});
    plain->all_reduce(host.stream(), anywhere, ReduceOp::kMax);
    noticed += values_of(anywhere)[0] != 0;
  }
  return noticed;
}

class NcclEventsOnCuda : public NcclMistakesOnCuda, public testing::WithParamInterface<bool> {};

TEST_P(NcclEventsOnCuda, AllThereTheyGiveTheSameValuesUnderEverySeed) {
  EXPECT_EQ(seeds_noticed(Spoilt::kNothing, "nothing", GetParam()), 0U);
}

// By schedules in which the input is written after the collective was enqueued; in others the
// values are right.
TEST_P(NcclEventsOnCuda, ACollectiveThatDoesNotWaitForItsInputsIsNoticed) {
  EXPECT_GE(seeds_noticed(Spoilt::kInputs,
                          "a copy's target is written to at byte 0 of the input of all-reduce of "
                          "16 f32 (NCCL over the tensor axis, group 0), which comes after this "
                          "work but does not wait for it",
                          GetParam()),
            kSeeds / 4);
}

// Whatever the schedule.
TEST_P(NcclEventsOnCuda, AStreamThatDoesNotWaitForTheResultIsNoticed) {
  EXPECT_EQ(seeds_noticed(Spoilt::kResults,
                          "a copy's source is read from at byte 0 of the output of all-reduce of "
                          "16 f32 (NCCL over the tensor axis, group 0), which comes before this "
                          "work, but this stream does not wait for it",
                          GetParam()),
            kSeeds);
}

INSTANTIATE_TEST_SUITE_P(Mutated, NcclEventsOnCuda, testing::Bool(), [](const auto& which) {
  return which.param ? "OfStartedCollectives" : "OfBlockingOnes";
});

// What is said where a started collective's memory is used before it is awaited, by whatever kind
// of work: after it, under every seed.
class NcclMemoryOnCuda : public NcclMistakesOnCuda {
 protected:
  using Use = std::function<void(TestContext&, Tensor& whole, Tensor& shard)>;
  static void expect_complaint(const Use& use, const std::string& words) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      emulated::gpu().options.seed = seed;
      TestContext test(kCudaDevice);
      NcclAxisOf<BreakableNccl> axis(60, "replicas");
      Tensor whole = test.filled(DType::kF32, {4 * size()}, 1);
      Tensor shard = test.zeros(DType::kF32, {4});
      const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), 4);
      test.stream().synchronize();
      EXPECT_THAT(complaint(test,
                            [&] {
                              Pending pending = axis.comm->start_reduce_scatter(test.stream(),
                                                                                whole, shard, rows);
                              use(test, whole, shard);
                              pending.finish(test.stream());
                            }),
                  AllOf(HasSubstr(words), HasSubstr("reduce-scatter of 4 f32 (NCCL over the "
                                                    "replicas axis, group 0)")));
      static_cast<BreakableNccl&>(*axis.comm).give_up();
      meet();
    }
  }
};

TEST_F(NcclMemoryOnCuda, AnInputThatIsWrittenTooEarlyIsNamed) {
  expect_complaint(
      [](TestContext& test, Tensor& whole, Tensor&) {
        const Tensor other = test.filled(DType::kF32, {2}, 3);
        copy(test.stream(), other, whole.view().rows(2, 2));
      },
      "a copy's target is written to at byte 8 of the input of");
}

TEST_F(NcclMemoryOnCuda, AResultThatIsReadTooEarlyIsNamed) {
  expect_complaint(
      [](TestContext& test, Tensor&, Tensor& shard) {
        Tensor seen = test.zeros(DType::kF32, {4});
        copy(test.stream(), shard, seen);
      },
      "a copy's source is read from at byte 0 of the output of");
}

TEST_F(NcclMemoryOnCuda, AKernelThatReadsAResultTooEarlyIsNamed) {
  expect_complaint(
      [](TestContext& test, Tensor&, Tensor& shard) {
        Tensor seen = test.zeros(DType::kBF16, {4});
        convert(test.ctx(), shard, seen);
      },
      "kernel launched at convert.cu:");
}

TEST_F(NcclMemoryOnCuda, ABufferThatIsGivenBackTooEarlyIsNamed) {
  expect_complaint([](TestContext&, Tensor& whole, Tensor&) { whole = Tensor(); },
                   "a buffer is given back that holds byte 0 of the input of");
}

// Mutation seen red: a stream that is synchronised before a collective is issued.
TEST_F(NcclMemoryOnCuda, TheHostWaitsForNoCollective) {
  TestContext test(kCudaDevice);
  NcclAxis axis;
  Tensor sum = test.filled(DType::kF32, {8}, 1), whole = test.zeros(DType::kF32, {8 * size()});
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), 8);
  const auto waits = emulated::gpu().statistics.host_waits;
  axis.comm->all_reduce(test.stream(), sum, ReduceOp::kSum);
  axis.comm->broadcast(test.stream(), sum, 0);
  axis.comm->all_gather(test.stream(), sum, whole, rows);
  axis.comm->reduce_scatter(test.stream(), whole, sum, rows);
  Pending gather = axis.comm->start_all_gather(test.stream(), sum, whole, rows);
  gather.finish(test.stream());
  Pending scatter = axis.comm->start_reduce_scatter(test.stream(), whole, sum, rows);
  scatter.finish(test.stream());
  EXPECT_EQ(emulated::gpu().statistics.host_waits, waits);
  EXPECT_EQ(values_of(sum), Values(8, std::pow(size(), 3)));
}

// What a stream reads that the collective reads too is nobody's harm.
TEST_F(NcclMemoryOnCuda, AnInputMayBeReadMeanwhile) {
  TestContext test(kCudaDevice);
  NcclAxis axis;
  Tensor shard = test.filled(DType::kF32, {8}, me()), whole = test.zeros(DType::kF32, {8 * size()});
  Tensor seen = test.zeros(DType::kF32, {8});
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), 8);
  Pending pending = axis.comm->start_all_gather(test.stream(), shard, whole, rows);
  copy(test.stream(), shard, seen);
  pending.finish(test.stream());
  EXPECT_EQ(values_of(seen), Values(8, me()));
}

}  // namespace
}  // namespace coppice
