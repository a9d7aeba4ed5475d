#pragma once
// A barrier among some warps of a block; __syncthreads() is the one among all of them.

namespace coppice::device {

/// Waits until `threads` threads (a multiple of 32) of the block have come to barrier `id`, 1
/// to 15.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace coppice::device
