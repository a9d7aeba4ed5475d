#pragma once
// Sums and maxima over a warp, in a fixed order: the same bits every time, in every lane.
#include <cmath>

#include "device/launch.cuh"
#include "device/shuffle.cuh"

namespace coppice::device {

/// Over the 32 lanes; every lane gets the result.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value += warp_shuffle_xor(value, mask);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    value = fmaxf(value, warp_shuffle_xor(value, mask));
  }
  return value;
}

}  // namespace coppice::device
