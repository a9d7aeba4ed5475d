#pragma once
// The emulated GPU itself: what a test may turn, the memory that stands for a device's, and what
// has been counted. There is one per process, as hardware is; streams and events are built on it in
// runtime.cpp, kernels run on it in grid.cpp.
#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/emulated/device_memory.hpp"
#include "core/cuda/emulated/fiber.hpp"
#include "core/cuda/emulated/stream_order.hpp"

namespace coppice::emulated {

/// In which order the threads of a block run between the points where they must meet.
enum class Schedule {
  kRandom,    ///< warps in random order, hopping now and then
  kRunAhead,  ///< one warp as far ahead as it gets, another after each barrier
};

struct Options {
  std::uint64_t seed = 1;
  Schedule schedule = Schedule::kRandom;
  /// Races, reads of what was never written, copies not waited for. Bounds are always checked.
  bool check_races = true;
  /// Dynamic shared memory that a block may have: the least of compute capability 8.0 and later
  /// (8.6, 8.9 and 12.0 have 99 KiB, 8.0 has 163, 9.0 has 227).
  std::int64_t shared_limit = 99 * 1024;
};

struct Statistics {
  std::uint64_t kernels = 0, blocks = 0, switches = 0, barriers = 0, collectives = 0;
  std::uint64_t matrix_products = 0, async_copies = 0, checked_accesses = 0;
  /// 8x8 matrices loaded, and the passes over shared memory that it took: as many where no rows of
  /// a matrix are in the same banks.
  std::uint64_t matrix_loads = 0, matrix_load_passes = 0;
  /// How often the host waited for the device, whether it was done or not.
  std::uint64_t host_waits = 0;
};

class Gpu {
 public:
  Options options;
  Statistics statistics;
  DeviceMemory memory;
  StreamOrder order;
  StackPool stacks;
};

/// The process's emulated GPU.
Gpu& gpu();

/// While it lives, kernels may write each of the bytes once at most; then it says how many of them
/// no kernel wrote. For outputs of which a kernel's blocks each own a part.
class WriteWatch {
 public:
  WriteWatch(const void* begin, std::int64_t bytes);
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  std::int64_t unwritten_bytes() const { return gpu().memory.unwritten_bytes(watch_); }

 private:
  int watch_;
};

}  // namespace coppice::emulated
