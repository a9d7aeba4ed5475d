// What the emulated NCCL must notice: every case is a mistake kept as a test, one that on a GPU
// would hang, or give other values now and then.
#include <gmock/gmock.h>

#include <functional>
#include <thread>

#include "core/convert.hpp"
#include "core/copy.hpp"
#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/runtime.hpp"
#include "parallel/exchange.hpp"
#include "ranks/nccl_ranks.hpp"

namespace coppice {
namespace {

using namespace test;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

using Values = std::vector<double>;
constexpr std::uint64_t kSeeds = 12;
constexpr double kImpatient = 0.5;  // seconds for which a rank waits for one that has failed

enum class Spoilt { kNothing, kInputs, kResults };

class SpoiltNccl final : public NcclCommunicator {
 public:
  SpoiltNccl(std::unique_ptr<Communicator> host, std::string axis, Device device,
             std::shared_ptr<NcclWatch> watch, Spoilt spoilt)
      : NcclCommunicator(std::move(host), std::move(axis), device, std::move(watch)),
        spoilt_(spoilt) {}

 private:
  void order(const Event& earlier, Stream& later, Order what) override {
    if (what == Order::kAfterInputs && spoilt_ == Spoilt::kInputs) return;
    if (what == Order::kBeforeResults && spoilt_ == Spoilt::kResults) return;
    NcclCommunicator::order(earlier, later, what);
  }
  Spoilt spoilt_;
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
      NcclAxis axis(kImpatient, "replicas");
      Tensor whole = test.filled(DType::kF32, {4 * size()}, 1);
      Tensor shard = test.zeros(DType::kF32, {4});
      const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), 4);
      test.stream().synchronize();
      EXPECT_THAT(complaint(test,
                            [&] {
                              Pending pending = axis.comm->start_reduce_scatter(
                                  test.stream(), whole, shard, rows);
                              use(test, whole, shard);
                              pending.finish(test.stream());
                            }),
                  AllOf(HasSubstr(words), HasSubstr("reduce-scatter of 4 f32 (NCCL over the "
                                                    "replicas axis, group 0)")));
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

TEST_F(NcclMistakesOnCuda, CollectivesInAnotherOrderOnOneRankAreNamed) {
  TestContext test(kCudaDevice);
  NcclAxis axis;
  Tensor sum = test.zeros(DType::kF32, {16}), whole = test.zeros(DType::kBF16, {4 * size()});
  const Tensor shard = test.zeros(DType::kBF16, {4});
  const auto text = complaint(test, [&] {
    if (me() == 0) axis.comm->all_reduce(test.stream(), sum, ReduceOp::kSum);
    axis.comm->all_gather(test.stream(), shard, whole);
    if (me() != 0) axis.comm->all_reduce(test.stream(), sum, ReduceOp::kSum);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("over the tensor axis, group 0: rank 0 of the axis issues "
                                    "all-reduce of 16 f32, rank 1 issues all-gather of 4 bf16"),
                          HasSubstr("same order")));
}

TEST_F(NcclMistakesOnCuda, OtherSizesAndTypesAndRootsAreNamed) {
  const auto of = [&](auto&& body) {
    meet();
    TestContext test(kCudaDevice);
    NcclAxis axis;
    return complaint(test, [&] { body(test, *axis.comm); });
  };
  EXPECT_THAT(of([&](TestContext& test, Communicator& comm) {
                Tensor x = test.zeros(DType::kF32, {me() == 0 ? 16 : 17});
                comm.all_reduce(test.stream(), x, ReduceOp::kSum);
                test.stream().synchronize();
              }),
              HasSubstr("rank 0 of the axis issues all-reduce of 16 f32, rank 1 issues all-reduce "
                        "of 17 f32"));
  EXPECT_THAT(of([&](TestContext& test, Communicator& comm) {
                Tensor x = test.zeros(me() == 0 ? DType::kF32 : DType::kI32, {16});
                comm.all_reduce(test.stream(), x, ReduceOp::kMax);
                test.stream().synchronize();
              }),
              HasSubstr("all-reduce of 16 f32 (maximum), rank 1 issues all-reduce of 16 i32 "
                        "(maximum)"));
  EXPECT_THAT(of([&](TestContext& test, Communicator& comm) {
                Tensor x = test.zeros(DType::kF32, {16});
                comm.broadcast(test.stream(), x, me() == 0 ? 0 : 1);
                test.stream().synchronize();
              }),
              HasSubstr("broadcast of 16 f32 with root 0, rank 1 issues broadcast of 16 f32 with "
                        "root 1"));
}

// Uneven shards, of which one rank thinks otherwise: a call of the group is missing.
TEST_F(NcclMistakesOnCuda, AGroupWithACallLessIsNamed) {
  TestContext test(kCudaDevice);
  NcclAxis axis;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), 0);
  rows[0] = 2;
  if (me() != 0) rows[1] = 1;
  const auto mine = rows[static_cast<std::size_t>(me())];
  const Tensor shard = test.zeros(DType::kF32, {mine, 3});
  Tensor whole = test.zeros(DType::kF32, {me() == 0 ? 2 : 3, 3});
  EXPECT_THAT(
      complaint(test, [&] { axis.comm->all_gather(test.stream(), shard, whole, rows); }),
      HasSubstr("rank 0 of the axis issues no further call, rank 1 issues broadcast of 3 f32"));
}

TEST_F(NcclMistakesOnCuda, MemoryOfTheHostIsRefused) {
  TestContext test(kCudaDevice);
  const auto host = ranks_session().split(0, "tensor", {.seconds = 60});
  Stream own(kCudaDevice);
  nccl::UniqueId id;
  if (me() == 0) id = nccl::make_unique_id();
  TestContext plain(1);
  host->broadcast(plain.stream(), host_view(reinterpret_cast<std::int64_t*>(id.bytes.data()), {16}),
                  0);
  auto connection = nccl::begin(kCudaDevice, id, host->rank(), host->size(), "tensor");
  while (nccl::state_of(*connection) == nccl::State::kInProgress) {
  }
  std::vector<float> values(4);
  const nccl::Call call{.kind = nccl::CallKind::kAllReduce,
                        .send = values.data(),
                        .receive = values.data(),
                        .count = 4};
  nccl::issue(*connection, own, {&call, 1});
  try {
    own.synchronize();
    ADD_FAILURE() << "nobody minded";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not in the device's memory"));
  }
  EXPECT_TRUE(nccl::has_failed(*connection));
}

// One of two calls of a group reads what the other writes.
TEST_F(NcclMistakesOnCuda, CallsOfOneGroupMayNotShareWhatTheyWrite) {
  TestContext test(kCudaDevice);
  NcclAxis axis;
  const auto host = ranks_session().split(0, "tensor", {.seconds = 60});
  nccl::UniqueId id;
  if (me() == 0) id = nccl::make_unique_id();
  TestContext plain(1);
  host->broadcast(plain.stream(), host_view(reinterpret_cast<std::int64_t*>(id.bytes.data()), {16}),
                  0);
  auto connection = nccl::begin(kCudaDevice, id, host->rank(), host->size(), "tensor");
  while (nccl::state_of(*connection) == nccl::State::kInProgress) {
  }
  Tensor x = test.zeros(DType::kF32, {8}), whole = test.zeros(DType::kF32, {8 * size()});
  test.stream().synchronize();
  const std::vector<nccl::Call> group{{.kind = nccl::CallKind::kAllReduce,
                                       .send = x.view().bytes(),
                                       .receive = x.view().bytes(),
                                       .count = 8},
                                      {.kind = nccl::CallKind::kAllGather,
                                       .send = x.view().bytes(),
                                       .receive = whole.view().bytes(),
                                       .count = 8}};
  Stream own(kCudaDevice);
  nccl::issue(*connection, own, group);
  try {
    own.synchronize();
    ADD_FAILURE() << "nobody minded";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("share memory that one of them writes"));
  }
}

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Seen red: without the thread that stops the device (the test hangs).
TEST_F(NcclMistakesOnCuda, ARankThatNeverComesIsNamedAndTheDeviceComesFree) {
  TestContext test(kCudaDevice);
  ranks_session().activity() = {.step = 7, .phase = "backward", .layer = 3};
  NcclAxis axis(1, "tensor");
  Tensor x = test.zeros(DType::kF32, {16});
  const int late = size() - 1;
  if (me() == late) {
    sleep_seconds(2.5);  // and then takes no part at all
  } else {
    const auto text =
        complaint(test, [&] { axis.comm->all_reduce(test.stream(), x, ReduceOp::kSum); });
    EXPECT_THAT(text, AllOf(HasSubstr("all_reduce over the tensor axis, step 7, backward, layer 3 "
                                      "(64 bytes) has not finished in"),
                            HasSubstr("rank " + std::to_string(late) + " (" +
                                      ranks_session().host() + ") has not entered")));
    // What comes after is refused at once.
    EXPECT_THROW(axis.comm->all_reduce(test.stream(), x, ReduceOp::kSum), CommError);
    TestContext host(1);
    Tensor y = host.zeros(DType::kF64, {1});
    EXPECT_THROW(test.stream().synchronize(), CommError);
  }
  ranks_session().activity() = {};
}

// Two axes, whose collectives one rank issues the other way round: neither can begin everywhere.
TEST_F(NcclMistakesOnCuda, AxesInAnotherOrderOnOneRankEndInTime) {
  {
    TestContext test(kCudaDevice);
    const auto watch = std::make_shared<NcclWatch>(ranks_session(), WatchdogConfig{.seconds = 1});
    const auto axis = [&](const std::string& name) {
      return std::make_unique<NcclCommunicator>(ranks_session().split(0, name, {.seconds = 60}),
                                                name, kCudaDevice, watch);
    };
    const auto first = axis("tensor"), second = axis("context");
    Tensor x = test.zeros(DType::kF32, {16}), y = test.zeros(DType::kF32, {16});
    const auto text = complaint(test, [&] {
      (me() == 0 ? first : second)->all_reduce(test.stream(), x, ReduceOp::kSum);
      (me() == 0 ? second : first)->all_reduce(test.stream(), y, ReduceOp::kSum);
    });
    EXPECT_THAT(text, AllOf(HasSubstr("has not finished in"),
                            HasSubstr(me() == 0 ? "all_reduce over the tensor axis"
                                                : "all_reduce over the context axis")));
  }
  meet();
}

// While the communicator is made.
TEST_F(NcclMistakesOnCuda, ARankThatNeverJoinsIsNamed) {
  const auto watch = std::make_shared<NcclWatch>(ranks_session(), WatchdogConfig{.seconds = 1});
  auto host = ranks_session().split(0, "tensor", {.seconds = 60});
  const int late = size() - 1;
  if (me() == late) {
    (void)broadcast_text(*host, "", 0);
    sleep_seconds(2.5);
  } else {
    try {
      NcclCommunicator comm(std::move(host), "tensor", kCudaDevice, watch);
      ADD_FAILURE() << "it is made without one of the ranks";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("the start of NCCL over the tensor axis"),
                                      HasSubstr("rank " + std::to_string(late))));
    }
  }
}

}  // namespace
}  // namespace coppice
