#pragma once
// Copies from device memory to shared memory that run while the thread goes on. They are counted in
// groups, per thread: a copy has landed for its thread after wait_copies, and for the others after
// a barrier behind that.
#include "device/launch.cuh"

namespace coppice::device {

/// 16 bytes, both sides aligned to 16. Not valid: 16 zero bytes, and `global` is not read.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

/// Ends a group: the copies since the last one.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all groups but the `kPending` youngest have landed.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace coppice::device
