#pragma once
// Sums and maxima over a block of whole warps, in a fixed order. All of the block's threads must
// come; every one gets the result. `shared` has room for a value per warp and is free for other use
// when the call returns.
#include "device/warp.cuh"

namespace coppice::device {

template <class T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  T sum = shared[0];
  for (int i = 1; i < warps; ++i) sum += shared[i];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ float block_max(float value, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = warp_max(value);
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float most = shared[0];
  for (int i = 1; i < warps; ++i) most = fmaxf(most, shared[i]);
  __syncthreads();
  return most;
}

}  // namespace coppice::device
