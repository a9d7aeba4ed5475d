// What the emulated device must notice in a kernel, and that it lets pass what is right. Each
// mistake is a mutation of a kernel beside it that is right; all are tried on several seeds and in
// both schedules, since a check that depends on luck is none.
//
// The checks themselves were seen red with: clocks not joined at a barrier; copies landing when
// they are issued; the count of sync_warp left out of the order; reads not remembered; a barrier's
// lanes not counted by warps; contents noted for reads as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/cuda/emulated/gpu.hpp"
#include "core/kernels/spoilt_kernels.hpp"
#include "support/device_array.hpp"

namespace coppice {
namespace {

using emulated::gpu;
using emulated::Schedule;
using test::DeviceArray;
using test::Mistake;
using enum Mistake;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kThreads = 128, kBlocks = 3;

class EmulatedChecks : public testing::Test {
 protected:
  ~EmulatedChecks() override { gpu().options = {}; }

  static std::vector<float> numbers(int count) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i + 1));
    return values;
  }

  std::vector<float> run(Mistake mistake) {
    const int blocks = mistake >= kNoneInDeviceMemory ? kBlocks : 1;
    const DeviceArray<float> in(stream_, numbers(blocks * kThreads));
    DeviceArray<float> out(stream_, static_cast<std::size_t>(blocks * kThreads)),
        scratch(stream_, numbers(blocks * kThreads));
    const emulated::WriteWatch watch(out.data(), out.bytes());
    test::launch_spoilt(stream_, mistake, {in.data(), out.data(), scratch.data(), blocks});
    auto values = out.values();
    EXPECT_EQ(watch.unwritten_bytes(), 0);
    return values;
  }

  template <class F>
  static void under_every_schedule(F&& f) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      for (const Schedule schedule : {Schedule::kRandom, Schedule::kRunAhead}) {
        gpu().options.seed = seed;
        gpu().options.schedule = schedule;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", schedule " << int(schedule));
        f();
      }
    }
  }

  Stream stream_{Device{DeviceKind::kCuda, 0}};
};

struct Noticed {
  const char* name;
  Mistake mistake;
  const char* words;
};
class EmulatedMistakes : public EmulatedChecks, public testing::WithParamInterface<Noticed> {};

TEST_P(EmulatedMistakes, AreNoticedUnderEverySchedule) {
  under_every_schedule([&] {
    EXPECT_THAT([&] { run(GetParam().mistake); },
                ThrowsMessage<DeviceError>(testing::ContainsRegex(GetParam().words)));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, EmulatedMistakes,
    testing::Values(
        Noticed{"NoBarrier", kNoBarrier, "shared memory at byte"},
        Noticed{"BarrierInBranch", kBarrierInBranch, "no thread can go on: 96 wait"},
        Noticed{"BarrierAtTwoPlaces", kBarrierAtTwoPlaces, "barrier 0 is reached at"},
        Noticed{"ReusedWithoutBarrier", kReusedWithoutBarrier, "race: "},
        Noticed{"BehindSharedMemory", kBehindSharedMemory, "of the block's 512 bytes"},
        Noticed{"BeforeSharedMemory", kBeforeSharedMemory, "of the block's 512 bytes"},
        Noticed{"NeverWritten", kNeverWritten, "was never written"},
        Noticed{"NoSyncWarp", kNoSyncWarp, "shared memory at byte"},
        Noticed{"ReusedWithoutSyncWarp", kReusedWithoutSyncWarp, "race: "},
        Noticed{"ShuffleInBranch", kShuffleInBranch,
                "lanes of the warp have ended|no thread can go on"},
        Noticed{"ShuffleAtTwoPlaces", kShuffleAtTwoPlaces, "the warp is divided"},
        Noticed{"ShuffleAfterLanesEnded", kShuffleAfterLanesEnded,
                "lanes of the warp have ended|no thread can go on"},
        Noticed{"ReadBeforeWait", kReadBeforeWait, "has not landed"},
        Noticed{"WaitForOlderGroups", kWaitForOlderGroups, "has not landed"},
        Noticed{"NotCommitted", kNotCommitted, "has not landed"},
        Noticed{"NeverWaited", kNeverWaited, "is in flight"},
        Noticed{"WrittenInFlight", kWrittenInFlight, "has not landed"},
        Noticed{"CopyToOdd", kCopyToOdd, "not aligned to 16 bytes"},
        Noticed{"CopyFromOdd", kCopyFromOdd, "not aligned to 16 bytes"},
        Noticed{"CopyFromBeyond", kCopyFromBeyond, "of a block of 512 bytes"},
        Noticed{"NamedBarrierOfTooMany", kNamedBarrierOfTooMany, "no thread can go on"},
        Noticed{"NamedBarrierOfTwoSizes", kNamedBarrierOfTwoSizes, "barrier 1 is reached"},
        Noticed{"NamedBarrierOfHalfWarps", kNamedBarrierOfHalfWarps, "is reached by 16 lanes"},
        Noticed{"NamedBarrierAtTwoPlaces", kNamedBarrierAtTwoPlaces, "by lanes of one warp at"},
        Noticed{"NotAligned", kNotAligned, "no multiple of 8"},
        Noticed{"NothingWritten", kNothingWritten, "that nothing was written to"},
        Noticed{"BehindDeviceMemory", kBehindDeviceMemory, "of a block of 1536 bytes"},
        Noticed{"WrittenTwice", kWrittenTwice, "was written already"},
        Noticed{"PartsOverlap", kPartsOverlap, "written already"},
        Noticed{"ReadsOtherBlock", kReadsOtherBlock, "race between blocks"},
        Noticed{"ScratchWithoutBarrier", kScratchWithoutBarrier, "device memory at byte"},
        Noticed{"OthersLocalMemory", kOthersLocalMemory, "'s local memory"},
        Noticed{"Throws", kThrows, "the kernel threw: no such case"}),
    [](const auto& one) { return one.param.name; });

TEST_F(EmulatedChecks, LetPassWhatIsRight) {
  under_every_schedule([&] {
    const auto in = numbers(kThreads);
    const auto between = run(kNoneBetweenWarps), in_warp = run(kNoneInWarp),
               copied = run(kNoneInCopies), named = run(kNoneInNamedBarriers),
               device = run(kNoneInDeviceMemory);
    for (std::size_t t = 0; t < kThreads; ++t) {
      EXPECT_EQ(between[t], in[(t + 32) % kThreads]);
      EXPECT_EQ(in_warp[t], in[t ^ 1]);
      EXPECT_EQ(copied[t], t < 124 ? in[t] : 0);  // the last copy was of nothing
      EXPECT_EQ(named[t], in[t / 64 * 64 + (t + 32) % 64]);
      EXPECT_EQ(device[t + kThreads], in[(t + 32) % kThreads] + kThreads);
    }
  });
}

TEST_F(EmulatedChecks, SayWhereAndWhatToDo) {
  EXPECT_THAT([&] { run(kNoBarrier); },
              ThrowsMessage<DeviceError>(testing::AllOf(HasSubstr("spoilt_kernels.cu:"),
                                                        HasSubstr("block (0, 0, 0), thread "))));
  EXPECT_THAT([&] { run(kReusedWithoutBarrier); },
              ThrowsMessage<DeviceError>(HasSubstr("Put a barrier")));
}

TEST_F(EmulatedChecks, NameMemoryThatIsNotTheDevices) {
  std::vector<float> host = numbers(kThreads);
  DeviceArray<float> out(stream_, kThreads), scratch(stream_, kThreads);
  test::launch_spoilt(stream_, kNoneBetweenWarps, {host.data(), out.data(), scratch.data(), 1});
  EXPECT_THAT([&] { stream_.synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("not in the device's memory")));
}

TEST_F(EmulatedChecks, NameMemoryThatWasGivenBack) {
  const float* gone = nullptr;
  {
    DeviceArray<float> in(stream_, numbers(kThreads));
    gone = in.data();
  }
  DeviceArray<float> out(stream_, kThreads), scratch(stream_, kThreads);
  test::launch_spoilt(stream_, kNoneBetweenWarps, {gone, out.data(), scratch.data(), 1});
  EXPECT_THAT([&] { stream_.synchronize(); },
              ThrowsMessage<DeviceError>(HasSubstr("that was given back")));
}

TEST_F(EmulatedChecks, TellBytesThatNoKernelWrote) {
  const DeviceArray<float> in(stream_, numbers(kThreads));
  DeviceArray<float> out(stream_, kThreads + 3), scratch(stream_, kThreads);
  const emulated::WriteWatch watch(out.data(), out.bytes());
  test::launch_spoilt(stream_, kNoneBetweenWarps, {in.data(), out.data(), scratch.data(), 1});
  stream_.synchronize();
  EXPECT_EQ(watch.unwritten_bytes(), 12);
}

TEST_F(EmulatedChecks, KeepBoundsWhereRacesAreNotLookedFor) {
  gpu().options.check_races = false;
  EXPECT_NO_THROW(run(kReusedWithoutBarrier));
  EXPECT_THROW(run(kBehindSharedMemory), DeviceError);
  EXPECT_THROW(run(kBehindDeviceMemory), DeviceError);
}

TEST_F(EmulatedChecks, RefuseShapesThatNoDeviceHas) {
  EXPECT_THROW(test::launch_empty(stream_, 1, 48, 0), DeviceError);
  EXPECT_THROW(test::launch_empty(stream_, 1, 1056, 0), DeviceError);
  EXPECT_THROW(test::launch_empty(stream_, 1, 0, 0), DeviceError);
  EXPECT_THROW(test::launch_empty(stream_, 1, 32, gpu().options.shared_limit + 1), DeviceError);
  const auto kernels = gpu().statistics.kernels;
  test::launch_empty(stream_, 0, 32, 0);  // nothing to do
  test::launch_empty(stream_, 2, 1024, 0);
  stream_.synchronize();
  EXPECT_EQ(gpu().statistics.kernels, kernels + 1);
}

TEST(EmulatedMemory, RefusesASecondRelease) {
  emulated::DeviceMemory memory;
  std::byte* block = memory.allocate(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 256U);  // as on a GPU, no more
  EXPECT_EQ(memory.bytes_in_use(), 100);
  memory.release(block);
  EXPECT_EQ(memory.bytes_in_use(), 0);
  EXPECT_THROW(memory.release(block), DeviceError);
  EXPECT_THROW(memory.release(block + 1), DeviceError);
}

TEST(EmulatedMemory, HoldsNaNBeforeAndAfterUse) {
  emulated::DeviceMemory memory;
  const emulated::Opened opened(memory.pages());
  std::byte* block = memory.allocate(8);
  EXPECT_EQ(block[0], std::byte{0xff});
  block[0] = std::byte{0};
  memory.release(block);
  EXPECT_EQ(block[0], std::byte{0xff});  // kept aside, so that a late access is recognised
}

TEST(EmulatedMemory, TellsOfABlockWrittenAfterItsEnd) {
  emulated::DeviceMemory memory;
  const emulated::Opened opened(memory.pages());
  constexpr std::int64_t kLarge = 40 << 20;
  std::byte* block = memory.allocate(kLarge);
  memory.release(block);
  block[kLarge / 2] = std::byte{0};
  // Found when the block is let go, which takes others to be freed after it.
  EXPECT_THROW(memory.release(memory.allocate(kLarge)), DeviceError);
}

// A host that follows a pointer of the device's dies, as it would beside a GPU.
TEST(EmulatedMemoryDeathTest, TheHostMayNotReachIntoIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Stream stream(Device{DeviceKind::kCuda, 0});
  std::byte* block = cuda::allocate(stream.state(), 64);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(block) = std::byte{0}, "the host reached into");
  EXPECT_DEATH({ [[maybe_unused]] const auto value = *const_cast<volatile std::byte*>(block); },
               "the host reached into");
  cuda::free(stream.state(), block);
  stream.synchronize();
}

}  // namespace
}  // namespace coppice
