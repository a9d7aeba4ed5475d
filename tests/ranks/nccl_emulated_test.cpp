// What the emulated NCCL must notice of ranks that disagree, fail or never come: mistakes kept as
// tests, each of which on a GPU would hang. Those of one rank's streams are in
// nccl_order_emulated_test.cpp.
#include <thread>

#include "parallel/exchange.hpp"
#include "parallel/nccl/emulated/faults.hpp"
#include "ranks/nccl_mistakes.hpp"

namespace coppice {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

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

// NCCL says so itself, long before the watchdog would: its words and the ranks' are told, and what
// comes after is refused. Seen red: has_failed() not asked.
TEST_F(NcclMistakesOnCuda, AnErrorThatComesByItselfEndsTheWaitAndIsTold) {
  for (const bool of_peers : {true, false}) {
    ranks_session().activity() = {.step = 7, .phase = "backward", .layer = 3};
    {
      TestContext test(kCudaDevice);
      NcclAxisOf<BreakableNccl> axis(60);
      Tensor x = test.zeros(DType::kF32, {16});
      nccl::Connection& connection = static_cast<BreakableNccl&>(*axis.comm).connection();
      const int lost = size() - 1;
      const auto begin = std::chrono::steady_clock::now();
      if (me() != lost) {
        axis.comm->all_reduce(test.stream(), x, ReduceOp::kSum);
        std::thread network([&] {
          sleep_seconds(0.2);
          nccl::fail(connection, "remote process exited", of_peers);
        });
        const auto text = complaint(test, [] {});
        network.join();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
        if (of_peers)
          EXPECT_THAT(text, AllOf(HasSubstr("all_reduce over the tensor axis, step 7, backward, "
                                            "layer 3 (64 bytes) failed: remote process exited; "),
                                  HasSubstr("rank " + std::to_string(lost) + " (" +
                                            ranks_session().host() + ") has not entered")));
        else
          EXPECT_EQ(text, "NCCL failed over the tensor axis: remote process exited");
        EXPECT_THROW(axis.comm->all_reduce(test.stream(), x, ReduceOp::kSum), CommError);
      } else {
        nccl::fail(connection, "remote process exited", of_peers);
        EXPECT_NE(complaint(test,
                            [&] {
                              sleep_seconds(0.2);
                              axis.comm->all_reduce(test.stream(), x, ReduceOp::kSum);
                            }),
                  "");
        sleep_seconds(3);  // silent until the others have told who is
      }
    }
    ranks_session().activity() = {};
    meet();
  }
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
