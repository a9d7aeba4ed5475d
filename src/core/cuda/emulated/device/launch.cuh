#pragma once
// The emulated device's half of device/launch.cuh: CUDA's words as C++, and a launch that binds the
// arguments and hands the kernel to the emulator. real/device/launch.cuh is the other half.
#include <type_traits>
#include <utility>

#include "core/cuda/emulated/kernel.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::coppice::emulated::thread_index())
#define blockIdx (::coppice::emulated::block_index())
#define blockDim (::coppice::emulated::block_shape())
#define gridDim (::coppice::emulated::grid_shape())

using dim3 = coppice::emulated::Dim3;

inline void __syncthreads(std::source_location place = std::source_location::current()) {
  ::coppice::emulated::barrier(0, 0, place);
}

namespace coppice::device {

using LaunchShape = emulated::LaunchShape;

template <class... Parameters, class... Arguments>
void launch(Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "a kernel's parameters are copied to the device byte by byte");
  if (shape.grid.count() == 0) return;
  // Copying the arguments is the launch's work, not the kernel's, so it is not instrumented.
  auto bound = [ kernel, ... values = static_cast<Parameters>(arguments) ]()
      __attribute__((no_sanitize_thread)) {
    kernel(values...);
  };
  using Bound = decltype(bound);
  void (*invoke)(const void*) = [](const void* call) __attribute__((no_sanitize_thread)) {
    (*static_cast<const Bound*>(call))();
  };
  emulated::enqueue_kernel(stream, shape, {invoke, std::make_shared<const Bound>(bound)});
}

inline unsigned char* shared_memory() { return emulated::shared_memory(); }

}  // namespace coppice::device
