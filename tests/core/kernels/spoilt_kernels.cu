#include "core/kernels/spoilt_kernels.hpp"

#include <stdexcept>

#include "device/async_copy.cuh"
#include "device/barrier.cuh"
#include "device/block.cuh"
#include "device/mma.cuh"
#include "device/pack.cuh"

namespace coppice::test {
namespace {

using namespace device;
using enum Mistake;

constexpr int kThreads = 128;
constexpr std::int64_t kSharedBytes = kThreads * sizeof(float);

__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

template <Mistake kMistake>
__global__ void between_warps(SpoiltArguments a) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread();
  if (kMistake != kNeverWritten || t < 64) shared[t] = a.in[t];
  if constexpr (kMistake == kBarrierAtTwoPlaces) {
    if (t < 64) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if constexpr (kMistake != kNoBarrier) {
    __syncthreads();
  }
  int source = (t + 32) % kThreads;
  if (kMistake == kBehindSharedMemory) source = t + 32;
  if (kMistake == kBeforeSharedMemory) source = t - 32;
  const float value = shared[source];
  if constexpr (kMistake == kReusedWithoutBarrier) shared[t] = value;
  a.out[t] = value;
  if constexpr (kMistake == kBarrierInBranch) {
    if (t < 96) __syncthreads();
  }
}

template <Mistake kMistake>
__global__ void in_warp(SpoiltArguments a) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread();
  shared[t] = a.in[t];
  if constexpr (kMistake != kNoSyncWarp) sync_warp();
  float value = shared[t ^ 1];
  if constexpr (kMistake == kReusedWithoutSyncWarp) shared[t] = 0;
  if constexpr (kMistake == kShuffleInBranch) {
    if (t % 2 == 0) value += warp_shuffle_xor(value, 2);
  } else if constexpr (kMistake == kShuffleAtTwoPlaces) {
    if (t % 2 == 0) {
      value = warp_shuffle_xor(value, 1);
    } else {
      value = warp_shuffle_xor(value, 1);
    }
  } else if constexpr (kMistake == kShuffleAfterLanesEnded) {
    if (t % 32 >= 24) return;
    value = warp_shuffle_xor(value, 1);
  } else {
    value = warp_shuffle_xor(warp_shuffle_xor(value, 1), 1);
  }
  a.out[t] = value;
}

template <Mistake kMistake>
__global__ void in_copies(SpoiltArguments a) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread();
  if (t < kThreads / 4) {
    const int to = kMistake == kCopyToOdd ? 1 : 0;
    const int from = kMistake == kCopyFromOdd ? 1 : kMistake == kCopyFromBeyond ? kThreads : 0;
    // Four elements by each of 32 threads; the last copy is of nothing and leaves zeros.
    copy_async_16(shared + (to + 4 * t) % kThreads, a.in + from + 4 * t, t != 31);
    if (kMistake != kNotCommitted) commit_copies();
    if (kMistake == kWrittenInFlight) shared[4 * t] = 0;
    if (kMistake == kReadBeforeWait) a.out[t] = shared[4 * t];
    if constexpr (kMistake == kWaitForOlderGroups) {
      wait_copies<1>();
    } else if constexpr (kMistake != kNeverWaited) {
      wait_copies<0>();
    }
  }
  __syncthreads();
  if (kMistake != kNeverWaited) a.out[t] = shared[t];
}

template <Mistake kMistake>
__global__ void in_named_barriers(SpoiltArguments a) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread(), pair = t / 64;
  shared[t] = a.in[t];
  if constexpr (kMistake == kNamedBarrierOfTooMany) {
    named_barrier(1 + pair, 96);
  } else if constexpr (kMistake == kNamedBarrierOfTwoSizes) {
    named_barrier(1, t < 32 ? 96 : 128);
  } else if constexpr (kMistake == kNamedBarrierOfHalfWarps) {
    named_barrier(1 + t % 32 / 16, 64);
  } else if constexpr (kMistake == kNamedBarrierAtTwoPlaces) {
    if (t % 2 == 0) {
      named_barrier(1 + pair, 64);
    } else {
      named_barrier(1 + pair, 64);
    }
  } else {
    named_barrier(1 + pair, 64);
  }
  a.out[t] = shared[pair * 64 + (t + 32) % 64];
}

template <Mistake kMistake>
__global__ void in_device_memory(SpoiltArguments a) {
  const int t = thread(), block = static_cast<int>(blockIdx.x), i = block * kThreads + t;
  a.scratch[i] = a.in[i];
  if constexpr (kMistake != kScratchWithoutBarrier) __syncthreads();
  int source = block * kThreads + (t + 32) % kThreads;
  if (kMistake == kReadsOtherBlock) source = (i + kThreads) % (a.blocks * kThreads);
  float value = a.scratch[source];
  if (kMistake == kBehindDeviceMemory) value += a.in[a.blocks * kThreads + t];
  if constexpr (kMistake == kOthersLocalMemory) {
    float** shared = reinterpret_cast<float**>(shared_memory());
    float own = value;
    if (t == 0) *shared = &own;
    __syncthreads();
    value += **shared;
    __syncthreads();
  }
  // Floats in pairs; those of odd threads begin between two multiples of 8.
  if (kMistake == kNotAligned && t < kThreads - 1) value += load_pack<2>(a.in + i)[1];
  if (kMistake == kNothingWritten) value += a.out[i];
  if constexpr (kMistake == kThrows) throw std::runtime_error("no such case");
  a.out[kMistake == kPartsOverlap ? t : i] = value;
  if constexpr (kMistake == kWrittenTwice) {
    __syncthreads();
    a.out[block * kThreads + (t + 1) % kThreads] = value;
  }
}

__global__ void empty() {}

template <Mistake kMistake>
void launch_as(Stream& stream, const SpoiltArguments& a) {
  const auto with = [&](auto kernel) {
    launch(stream, {dim3(static_cast<unsigned>(a.blocks)), dim3(kThreads), kSharedBytes}, kernel,
           a);
  };
  if constexpr (kMistake <= kNeverWritten) {
    with(between_warps<kMistake>);
  } else if constexpr (kMistake <= kShuffleAfterLanesEnded) {
    with(in_warp<kMistake>);
  } else if constexpr (kMistake <= kCopyFromBeyond) {
    with(in_copies<kMistake>);
  } else if constexpr (kMistake <= kNamedBarrierAtTwoPlaces) {
    with(in_named_barriers<kMistake>);
  } else {
    with(in_device_memory<kMistake>);
  }
}

// Turns the value into a constant.
template <int kAt = 0>
void launch_from(Stream& stream, int mistake, const SpoiltArguments& a) {
  if (mistake == kAt) return launch_as<static_cast<Mistake>(kAt)>(stream, a);
  if constexpr (kAt < static_cast<int>(kThrows)) launch_from<kAt + 1>(stream, mistake, a);
}

}  // namespace

void launch_spoilt(Stream& stream, Mistake mistake, const SpoiltArguments& arguments) {
  launch_from(stream, static_cast<int>(mistake), arguments);
}

void launch_empty(Stream& stream, unsigned grid, unsigned block, std::int64_t shared_bytes) {
  launch(stream, {dim3(grid), dim3(block), shared_bytes}, empty);
}

}  // namespace coppice::test
