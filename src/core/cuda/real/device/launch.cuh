#pragma once
// How a kernel file reaches the device: the one typed launch, and the block's shared memory. Kernel
// files include only this and its neighbours in device/, so that they compile as well for the
// emulated device, whose folder has the same names. The handle behind a Stream belongs to
// core/cuda/launch_support.hpp.
#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>
#include <type_traits>

#include "core/cuda/launch_support.hpp"

namespace coppice::device {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::int64_t shared_bytes = 0;
  /// Where the launch is written; names the kernel in errors. Not for callers to set.
  std::source_location place = std::source_location::current();
};

/// Enqueues kernel(arguments...) on the stream. A grid without a block does nothing.
///
/// Errors    DeviceError when the device refuses the launch
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "a kernel's parameters are copied to the device byte by byte");
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  auto* native = static_cast<cudaStream_t>(cuda::native_stream(stream));
  // More than 48 KiB a block must be asked for, once per kernel and device; asking again is cheap.
  if (shape.shared_bytes > 48 * 1024) {
    cuda::check_device(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shape.shared_bytes)),
                       "raising a kernel's limit of shared memory");
  }
  kernel<<<shape.grid, shape.block, static_cast<std::size_t>(shape.shared_bytes), native>>>(
      static_cast<Parameters>(arguments)...);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    const auto action =
        fmt::format("launching a kernel at {}:{}", shape.place.file_name(), shape.place.line());
    cuda::check_device(error, action.c_str());
  }
}

/// The block's LaunchShape::shared_bytes, aligned to 1024 bytes.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

/// What instructions on shared memory take as an address.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace coppice::device
