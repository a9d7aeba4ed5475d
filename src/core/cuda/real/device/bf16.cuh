#pragma once
// bf16 as storage: to f32 and back, one at a time or two in a 32-bit word. Arithmetic is in f32.
#include <cstdint>

#include "core/dtype.hpp"

namespace coppice::device {

__device__ __forceinline__ float bf16_to_float(BF16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}

/// The two halves of a word; the low half is the element at the lower address.
__device__ __forceinline__ float low_bf16(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/// To nearest, ties to even; a NaN becomes 0x7fff.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ BF16 float_to_bf16(float value) {
  return {static_cast<std::uint16_t>(pack_bf16(value, 0.0f) & 0xffffu)};
}

}  // namespace coppice::device
