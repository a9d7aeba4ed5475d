// The emulated device's streams and memory: what the host must not count on does go wrong under
// some seed, what it may count on never does, and faults are told apart by what they say. Each
// "IsCaught" is a mutation: the same work with one event, wait or lifetime taken away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/copy.hpp"
#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/stream.hpp"
#include "core/cuda/runtime.hpp"
#include "core/gemm.hpp"
#include "support/test_context.hpp"

namespace coppice {
namespace {

using test::kCudaDevice;
using test::TestContext;
using test::values_of;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint64_t kSeeds = 24;

class EmulatedStreams : public testing::Test {
 protected:
  ~EmulatedStreams() override { emulated::gpu().options = {}; }

  /// How many seeds make `body` return false or throw a DeviceError.
  template <class Body>
  std::uint64_t seeds_that_fail(const Body& body) {
    std::uint64_t failures = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      emulated::gpu().options.seed = seed;
      try {
        failures += body() ? 0 : 1;
      } catch (const DeviceError&) {
        ++failures;
      }
    }
    return failures;
  }
};

// One stream makes x, another one reads it into y.
bool reader_sees_what_was_made(bool with_event) {
  TestContext first(kCudaDevice);
  Stream second(kCudaDevice);
  Tensor x = first.zeros(DType::kF32, {16}), y = first.zeros(DType::kF32, {16});
  const Tensor source = first.filled(DType::kF32, {16}, 5.0);
  first.stream().synchronize();
  copy(first.stream(), source, x);
  if (with_event) second.wait(first.stream().record());
  copy(second, x, y);
  second.synchronize();
  const auto values = values_of(y);
  return values == std::vector<double>(16, 5.0);
}

TEST_F(EmulatedStreams, AnEventOrdersTwoStreamsUnderEverySeed) {
  EXPECT_EQ(seeds_that_fail([] { return reader_sees_what_was_made(true); }), 0U);
}

TEST_F(EmulatedStreams, AMissingEventBetweenWriterAndReaderIsCaught) {
  EXPECT_GE(seeds_that_fail([] { return reader_sees_what_was_made(false); }), kSeeds / 4);
}

// One stream reads x, then another one overwrites it.
bool reader_sees_what_was_there(bool with_event) {
  TestContext first(kCudaDevice);
  Stream second(kCudaDevice);
  Tensor x = first.filled(DType::kF32, {16}, 5.0), y = first.zeros(DType::kF32, {16});
  first.stream().synchronize();
  copy(first.stream(), x, y);
  if (with_event) second.wait(first.stream().record());
  set_zero(second, x);
  second.synchronize();
  return values_of(y) == std::vector<double>(16, 5.0);
}

TEST_F(EmulatedStreams, AMissingEventBetweenReaderAndWriterIsCaught) {
  EXPECT_EQ(seeds_that_fail([] { return reader_sees_what_was_there(true); }), 0U);
  EXPECT_GE(seeds_that_fail([] { return reader_sees_what_was_there(false); }), kSeeds / 4);
}

// The host reads pinned memory that a copy fills.
bool host_sees_the_copy(bool with_wait) {
  TestContext test(kCudaDevice);
  const Tensor x = test.filled(DType::kF32, {4}, 5.0);
  test.stream().synchronize();
  auto* pinned = reinterpret_cast<float*>(cuda::allocate_pinned(16));
  cuda::copy(test.stream().state(), {cuda::CopyKind::kToHost, pinned, x.view().bytes(), 16});
  if (with_wait) test.stream().record().wait();
  const bool seen = pinned[0] == 5.0F && pinned[3] == 5.0F;
  test.stream().synchronize();
  cuda::free_pinned(reinterpret_cast<std::byte*>(pinned));
  return seen;
}

TEST_F(EmulatedStreams, AMissingWaitOfTheHostIsCaught) {
  EXPECT_EQ(seeds_that_fail([] { return host_sees_the_copy(true); }), 0U);
  EXPECT_GE(seeds_that_fail([] { return host_sees_the_copy(false); }), kSeeds / 4);
}

// A buffer made on one stream ends while another one may still read it.
bool buffer_outlives_its_reader(bool with_event) {
  TestContext first(kCudaDevice);
  Stream second(kCudaDevice);
  Tensor y = first.zeros(DType::kF32, {16});
  {
    const Tensor x = first.filled(DType::kF32, {16}, 5.0);
    first.stream().synchronize();
    copy(second, x, y);
    if (with_event) first.stream().wait(second.record());
  }
  first.stream().synchronize();
  second.synchronize();
  return values_of(y) == std::vector<double>(16, 5.0);
}

TEST_F(EmulatedStreams, ABufferThatEndsBeforeItsReaderOnAnotherStreamIsCaught) {
  EXPECT_EQ(seeds_that_fail([] { return buffer_outlives_its_reader(true); }), 0U);
  EXPECT_GE(seeds_that_fail([] { return buffer_outlives_its_reader(false); }), kSeeds / 4);
}

// A stream uses a buffer that another one allocates.
bool buffer_is_there_before_its_user(bool with_event) {
  TestContext first(kCudaDevice);
  Stream second(kCudaDevice);
  first.stream().synchronize();
  Tensor x = Tensor(first.memory(), DType::kF32, {16}, "x");
  if (with_event) second.wait(first.stream().record());
  set_zero(second, x);
  second.synchronize();
  return true;
}

TEST_F(EmulatedStreams, ABufferUsedBeforeItsStreamHasAllocatedItIsCaught) {
  EXPECT_EQ(seeds_that_fail([] { return buffer_is_there_before_its_user(true); }), 0U);
  EXPECT_GE(seeds_that_fail([] { return buffer_is_there_before_its_user(false); }), kSeeds / 4);
}

// What was not written is known through fills, copies and products.
TEST_F(EmulatedStreams, AProductOfBytesThatNothingWroteIsCaught) {
  TestContext test(kCudaDevice);
  const Tensor a = test.filled(DType::kF32, {4, 8}, 1.0);
  Tensor b = Tensor(test.memory(), DType::kF32, {8, 4}, "x"),
         copied = Tensor(test.memory(), DType::kF32, {8, 4}, "x"),
         c = Tensor(test.memory(), DType::kF32, {4, 4}, "x");
  set_zero(test.stream(), b.view().rows(0, 7));
  copy(test.stream(), b, copied);
  gemm(test.ctx(), a, copied, c);
  EXPECT_THAT([&] { test.stream().synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("a product's a holds bytes that nothing")));
  copy(test.stream(), test.filled(DType::kF32, {1, 4}, 1.0), copied.view().rows(7, 1));
  gemm(test.ctx(), a, copied, c);
  test.stream().synchronize();
  EXPECT_EQ(values_of(c), std::vector<double>(16, 1.0));
}

TEST_F(EmulatedStreams, WorkOfAnEmptyQueueBehindManyEventsComesInOrder) {
  // A chain over three streams, each link held by an event alone.
  EXPECT_EQ(seeds_that_fail([] {
              Stream streams[] = {Stream(kCudaDevice), Stream(kCudaDevice), Stream(kCudaDevice)};
              std::vector<int> order;
              for (int i = 0; i < 12; ++i) {
                Stream& stream = streams[i % 3];
                emulated::enqueue(stream, "a link", [&order, i] { order.push_back(i); });
                streams[(i + 1) % 3].wait(stream.record());
              }
              streams[0].synchronize();
              for (int i = 0; i < 12; ++i) {
                if (order[static_cast<std::size_t>(i)] != i) return false;
              }
              return order.size() == 12;
            }),
            0U);
}

TEST_F(EmulatedStreams, SomeSeedLeavesAllWorkUndoneAndSomeSeedDoesItAtOnce) {
  std::uint64_t undone = 0, done = 0;
  seeds_that_fail([&] {
    Stream stream(kCudaDevice);
    int count = 0;
    for (int i = 0; i < 8; ++i) emulated::enqueue(stream, "count", [&count] { ++count; });
    undone += count == 0 ? 1 : 0;
    done += count == 8 ? 1 : 0;
    stream.synchronize();
    EXPECT_EQ(count, 8);
    return true;
  });
  EXPECT_GE(undone, kSeeds / 8);
  EXPECT_GE(done, kSeeds / 8);
}

TEST_F(EmulatedStreams, TheSameSeedGivesTheSameOrder) {
  const auto order_of = [](std::uint64_t seed) {
    emulated::gpu().options.seed = seed + 1;  // so that the next line starts anew
    {
      Stream stream(kCudaDevice);
      emulated::enqueue(stream, "nothing", [] {});
    }
    emulated::gpu().options.seed = seed;
    Stream streams[] = {Stream(kCudaDevice), Stream(kCudaDevice)};
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) {
      emulated::enqueue(streams[i % 2], "note", [&order, i] { order.push_back(i); });
    }
    streams[1].synchronize();
    streams[0].synchronize();
    return order;
  };
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto order = order_of(seed);
    EXPECT_EQ(order, order_of(seed));
    orders.insert(order);
  }
  EXPECT_GE(orders.size(), kSeeds / 4);
}

TEST_F(EmulatedStreams, AFailureReachesTheHostAtItsNextWaitAndDropsWhatCameAfter) {
  seeds_that_fail([] {
    Stream stream(kCudaDevice);
    bool later = false;
    emulated::enqueue(stream, "bad work", [] { throw DeviceError("the reason"); });
    emulated::enqueue(stream, "later work", [&later] { later = true; });
    EXPECT_THAT([&] { stream.synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("the reason")));
    EXPECT_FALSE(later);
    stream.synchronize();  // told once
    emulated::enqueue(stream, "new work", [&later] { later = true; });
    stream.synchronize();
    EXPECT_TRUE(later);
    return true;
  });
}

TEST_F(EmulatedStreams, WhatFailsWhileAStreamEndsIsToldAtTheNextWait) {
  Stream other(kCudaDevice);
  {
    Stream stream(kCudaDevice);
    emulated::enqueue(stream, "bad work", [] { throw std::runtime_error("the reason"); });
  }
  EXPECT_THAT([&] { other.synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("bad work: the reason")));
}

TEST_F(EmulatedStreams, CopiesBesideABlockAndOfAFreedOneAreRefused) {
  TestContext test(kCudaDevice);
  Tensor x = test.zeros(DType::kF32, {16});
  auto& state = test.stream().state();
  cuda::copy(state, {cuda::CopyKind::kOnDevice, x.view().bytes() + 4, x.view().bytes(), 64});
  EXPECT_THAT([&] { test.stream().synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("bytes 4 to 68 of a block of 64 bytes")));
  std::byte* freed = cuda::allocate(state, 64);
  cuda::free(state, freed);
  cuda::fill(state, freed, 0, 64);
  EXPECT_THAT([&] { test.stream().synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("given back")));
  cuda::free(state, freed);
  EXPECT_THAT([&] { test.stream().synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("is free already")));
}

TEST_F(EmulatedStreams, PinnedMemoryGivenBackBeforeItsCopyIsCaught) {
  EXPECT_GE(seeds_that_fail([] {
              TestContext test(kCudaDevice);
              Tensor x = test.zeros(DType::kF32, {16});
              std::byte* pinned = cuda::allocate_pinned(64);
              cuda::copy(test.stream().state(),
                         {cuda::CopyKind::kToDevice, x.view().bytes(), pinned, 64});
              cuda::free_pinned(pinned);
              test.stream().synchronize();
              return true;
            }),
            kSeeds / 4);
}

TEST_F(EmulatedStreams, FreshAndFreedMemoryHoldsNaN) {
  TestContext test(kCudaDevice);
  const Tensor fresh(test.memory(), DType::kF32, {5}, "test");
  for (const double value : values_of(fresh)) EXPECT_NE(value, value);
  const Tensor half(test.memory(), DType::kBF16, {5}, "test");
  for (const double value : values_of(half)) EXPECT_NE(value, value);
}

TEST_F(EmulatedStreams, ALeaseThatIsLeasedAgainHoldsNaN) {
  TestContext test(kCudaDevice);
  for (int round = 0; round < 2; ++round) {
    ScratchScope scratch(test.scratch());
    const TensorView lease = scratch.lease(DType::kF32, {5});
    for (const double value : values_of(lease)) EXPECT_NE(value, value);
    set_zero(test.stream(), lease);
  }
}

}  // namespace
}  // namespace coppice
