// Collectives of device memory through the host, in one process: in the order of the stream under
// every schedule, for tensors of the host and of the device alike. On several ranks, with MPI:
// tests/ranks/staged_test.cpp.
#include "parallel/staged_communicator.hpp"

#include <gtest/gtest.h>

#include "core/copy.hpp"
#include "parallel/doubling_host.hpp"
#include "support/device_schedule.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::DoublingHost;
using test::kCudaDevice;
using test::TestContext;
using test::values_of;

using Values = std::vector<double>;

class StagedOnCuda : public testing::TestWithParam<int> {
 protected:
  StagedOnCuda() : test_(kCudaDevice) {
    test::set_device_schedule(GetParam());
    auto host = std::make_unique<DoublingHost>();
    host_ = host.get();
    comm_ = make_staged_communicator(std::move(host));
  }
  ~StagedOnCuda() override { test::set_device_schedule(0); }
  Tensor from(const Values& values) {
    return test_.from(DType::kF32, {std::ssize(values)}, values);
  }
  Stream& stream() { return test_.stream(); }

  TestContext test_;
  DoublingHost* host_;
  std::unique_ptr<Communicator> comm_;
};

// Seen red without the host's wait for the copy out of the device (also kept as a test:
// staged_waits_emulated_test.cpp).
TEST_P(StagedOnCuda, SumsWhatTheStreamWroteBeforeAndShowsItToWhatComesAfter) {
  const Tensor source = from({1, 2, 3}), other = from({7, 8, 9});
  Tensor x = from({0, 0, 0}), y = from({0, 0, 0});
  copy(stream(), source, x);
  comm_->all_reduce(stream(), x, ReduceOp::kSum);
  copy(stream(), x, y);
  copy(stream(), other, x);
  EXPECT_EQ(values_of(y), (Values{2, 4, 6}));
  EXPECT_EQ(values_of(x), (Values{7, 8, 9}));
}

TEST_P(StagedOnCuda, GathersAndScattersThroughTheRanksOwnPlace) {
  const Tensor shard = from({1, 2});
  Tensor whole = from({0, 0, 0, 0});
  comm_->all_gather(stream(), shard, whole);
  EXPECT_EQ(values_of(whole), (Values{1, 2, 1, 2}));
  Tensor in_place = from({0, 0, 5, 6});
  comm_->all_gather(stream(), in_place.view().rows(2, 2), in_place);
  EXPECT_EQ(values_of(in_place), (Values{5, 6, 5, 6}));

  Tensor sum = from({0, 0});
  const Tensor terms = from({1, 2, 3, 4});
  comm_->reduce_scatter(stream(), terms, sum);
  EXPECT_EQ(values_of(sum), (Values{6, 8}));
  EXPECT_EQ(values_of(terms), (Values{1, 2, 3, 4}));
}

TEST_P(StagedOnCuda, LaterCallsDoNotDisturbEarlierResults) {
  std::vector<Tensor> got;
  for (int i = 0; i < 6; ++i) {
    got.push_back(test_.zeros(DType::kF32, {2 + 3 * i}));
    host_->sent = static_cast<float>(i);
    comm_->broadcast(stream(), got.back(), 0);
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(values_of(got[static_cast<std::size_t>(i)]),
              Values(static_cast<std::size_t>(2 + 3 * i), i));
  }
}

TEST_P(StagedOnCuda, TheRootsValuesStayWhereTheyAre) {
  Tensor x = from({3, 4});
  comm_->broadcast(stream(), x, 1);
  EXPECT_EQ(values_of(x), (Values{3, 4}));
}

TEST_P(StagedOnCuda, TensorsOfTheHostAreNotStaged) {
  TestContext host;
  Tensor x = host.from(DType::kF32, {2}, {1, 2}), whole = host.zeros(DType::kF32, {4});
  comm_->all_reduce(stream(), x, ReduceOp::kSum);
  EXPECT_EQ(values_of(x), (Values{2, 4}));
  comm_->all_gather(stream(), x, whole);
  EXPECT_EQ(values_of(whole), (Values{2, 4, 0, 0}))
      << "the host's communicator had them as they are";
}

TEST_P(StagedOnCuda, ABarrierWaitsForTheStreamAndForTheOthers) {
  comm_->barrier(stream());
  EXPECT_EQ(host_->barriers, 1);
}

TEST_P(StagedOnCuda, CountsWhatTheCallerHandedIn) {
  Tensor x = from({1, 2, 3});
  comm_->all_reduce(stream(), x, ReduceOp::kSum);
  EXPECT_EQ(comm_->counter(Collective::kAllReduce).calls, 1);
  EXPECT_EQ(comm_->counter(Collective::kAllReduce).bytes, 12);
}

INSTANTIATE_TEST_SUITE_P(Schedules, StagedOnCuda, testing::Range(0, 4));

// One rank alone: gathers are copies in the stream's order.
TEST(SelfCommunicatorOnCuda, GathersAreCopiesOfTheDevice) {
  TestContext test(kCudaDevice);
  const auto self = make_self_communicator();
  const Tensor x = test.random(DType::kBF16, {3, 2}, "x");
  Tensor y = test.zeros(DType::kBF16, {3, 2}), z = test.zeros(DType::kBF16, {3, 2});
  self->all_gather(test.stream(), x, y);
  self->reduce_scatter(test.stream(), y, z);
  EXPECT_TRUE(test::bit_equal(x, z));
}

}  // namespace
}  // namespace coppice
