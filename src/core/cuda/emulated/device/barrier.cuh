#pragma once
// A barrier among some warps of a block, as real/device/barrier.cuh has it.
#include "device/launch.cuh"

namespace coppice::device {

inline void named_barrier(int id, int threads,
                          std::source_location place = std::source_location::current()) {
  emulated::barrier(id, threads, place);
}

}  // namespace coppice::device
