#pragma once
// Small kernels of 128 threads a block that pass values between threads in each of the ways there
// are: each of them right, and with each of the mistakes that the emulated device must notice.
#include "core/stream.hpp"

namespace coppice::test {

enum class Mistake {
  kNoneBetweenWarps,  ///< out[t] = in[(t + 32) % 128] through shared memory
  kNoBarrier,
  kBarrierInBranch,
  kBarrierAtTwoPlaces,
  kReusedWithoutBarrier,
  kBehindSharedMemory,
  kBeforeSharedMemory,
  kNeverWritten,

  kNoneInWarp,  ///< out[t] = in[t ^ 1], through shared memory and through a shuffle
  kNoSyncWarp,
  kReusedWithoutSyncWarp,
  kShuffleInBranch,
  kShuffleAtTwoPlaces,
  kShuffleAfterLanesEnded,

  kNoneInCopies,  ///< out[t] = in[t], by asynchronous copies of four
  kReadBeforeWait,
  kWaitForOlderGroups,
  kNotCommitted,
  kNeverWaited,
  kWrittenInFlight,
  kCopyToOdd,
  kCopyFromOdd,
  kCopyFromBeyond,

  kNoneInNamedBarriers,  ///< as between warps, by pairs of warps
  kNamedBarrierOfTooMany,
  kNamedBarrierOfTwoSizes,
  kNamedBarrierOfHalfWarps,
  kNamedBarrierAtTwoPlaces,

  kNoneInDeviceMemory,  ///< out[b * 128 + t] = in of the same place, and scratch between threads
  kBehindDeviceMemory,
  kWrittenTwice,
  kPartsOverlap,
  kReadsOtherBlock,
  kScratchWithoutBarrier,
  kOthersLocalMemory,
  kNotAligned,
  kNothingWritten,
  kThrows,
};

struct SpoiltArguments {
  const float* in;
  float* out;
  float* scratch;
  int blocks;
};

void launch_spoilt(Stream& stream, Mistake mistake, const SpoiltArguments& arguments);
/// One that does nothing, in any shape.
void launch_empty(Stream& stream, unsigned grid, unsigned block, std::int64_t shared_bytes);

}  // namespace coppice::test
