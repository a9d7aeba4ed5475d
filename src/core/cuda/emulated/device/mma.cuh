#pragma once
// Tensor-core instructions, as real/device/mma.cuh has them, with their layouts.
#include "device/launch.cuh"

namespace coppice::device {

inline void mma_m16n8k16_bf16(float* d, const std::uint32_t* a, const std::uint32_t* b,
                              std::source_location place = std::source_location::current()) {
  emulated::mma_m16n8k16_bf16(d, a, b, place);
}
inline void load_matrix_x4(std::uint32_t* out, const void* row,
                           std::source_location place = std::source_location::current()) {
  emulated::load_matrix_x4(out, row, false, place);
}
inline void load_matrix_x4_transposed(
    std::uint32_t* out, const void* row,
    std::source_location place = std::source_location::current()) {
  emulated::load_matrix_x4(out, row, true, place);
}

}  // namespace coppice::device
