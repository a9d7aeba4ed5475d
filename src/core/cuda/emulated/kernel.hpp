#pragma once
// What a kernel compiled for the emulated device calls: who a thread is, and the instructions that
// plain C++ does not have. The headers in emulated/device/ give these their names on the GPU; how
// fibers and checks do the work is left to the .cpp files here.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <string>

#include "core/stream.hpp"

namespace coppice::emulated {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3() = default;
  constexpr Dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1)  // NOLINT: implicit, as in CUDA
      : x(x_), y(y_), z(z_) {}
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

struct LaunchShape {
  Dim3 grid;
  Dim3 block;
  std::int64_t shared_bytes = 0;
  /// Where the launch is written; names the kernel in errors. Not for callers to set.
  std::source_location place = std::source_location::current();
};

/// A kernel with its arguments, bound. Not a std::function: reading the arguments out of it must
/// not count as the kernel's own access to memory.
struct KernelCall {
  void (*invoke)(const void* bound) = nullptr;
  std::shared_ptr<const void> bound;
};

/// Puts the kernel behind what the stream holds already.
///
/// Errors    DeviceError when the shape is beyond what the device has; what a check finds while the
///           kernel runs is thrown when the host next waits for the stream
void enqueue_kernel(Stream& stream, const LaunchShape& shape, KernelCall call);

// The rest is called by the threads of a running kernel. Values, not references: a load through a
// reference would count as an access of the kernel.

Dim3 thread_index();
Dim3 block_index();
Dim3 block_shape();
Dim3 grid_shape();
unsigned char* shared_memory();

/// A barrier of `threads` threads; 0 stands for all of the block.
void barrier(int id, int threads, const std::source_location& place);
void sync_warp(const std::source_location& place);

/// Every lane gives `value` and gets that of lane `source` (taken modulo 32).
std::uint64_t shuffle(std::uint64_t value, int source, const std::source_location& place);
/// This thread's lane.
int lane();

void mma_m16n8k16_bf16(float* d, const std::uint32_t* a, const std::uint32_t* b,
                       const std::source_location& place);
void load_matrix_x4(std::uint32_t* out, const void* row, bool transposed,
                    const std::source_location& place);

void copy_async_16(void* shared, const void* global, bool valid, const std::source_location& place);
void commit_copies();
void wait_copies(int pending);

}  // namespace coppice::emulated
