#pragma once
// bf16 as storage, as real/device/bf16.cuh has it.
#include <bit>
#include <cstdint>

#include "core/dtype.hpp"

namespace coppice::device {

inline float low_bf16(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
inline float high_bf16(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
inline float bf16_to_float(BF16 value) { return low_bf16(value.bits); }

// The processor's NaN is 0x7fff, whatever the operand's bits (core/convert.hpp keeps some of them).
inline BF16 float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline std::uint32_t pack_bf16(float low, float high) {
  return float_to_bf16(low).bits | static_cast<std::uint32_t>(float_to_bf16(high).bits) << 16;
}

}  // namespace coppice::device
