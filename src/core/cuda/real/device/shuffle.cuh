#pragma once
// What the 32 lanes of a warp do together. All of them must arrive, at the same line.
#include <cstdint>

namespace coppice::device {

inline constexpr int kWarpSize = 32;

/// The value of lane (own lane xor mask).
template <class T>
__device__ __forceinline__ T warp_shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// The value of lane `source`.
template <class T>
__device__ __forceinline__ T warp_shuffle(T value, int source) {
  return __shfl_sync(0xffffffffu, value, source);
}

/// The value of lane (own lane + distance); the last `distance` lanes keep their own.
template <class T>
__device__ __forceinline__ T warp_shuffle_down(T value, int distance) {
  return __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(distance));
}

/// Orders the lanes' accesses to shared memory before it with those behind it. A shuffle does not.
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

}  // namespace coppice::device
