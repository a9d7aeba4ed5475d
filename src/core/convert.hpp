#pragma once
// Conversions between the floating-point types that files and devices hold. Arithmetic of 16-bit
// floats happens in f32; these, and a device's own instructions, are the only places that know
// their bits. Reading and writing files is left to checkpoint/.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// Exact: every bf16 is an f32 with sixteen zero bits behind it.
inline float to_f32(BF16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Exact, subnormals included, also where the processor flushes subnormals to zero.
inline float to_f32(F16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const std::uint32_t exponent = magnitude & 0x0f800000u;
  const std::uint32_t normal = magnitude + ((127u - 15u) << 23);
  const std::uint32_t infinite = normal + ((128u - 16u) << 23);
  // A subnormal is m 2^-24: put m behind the exponent of 2^-14 and take 2^-14 away.
  const float subnormal = std::bit_cast<float>(normal + (1u << 23)) - 0x1p-14f;
  const std::uint32_t bits = exponent == 0x0f800000u ? infinite
                             : exponent == 0         ? std::bit_cast<std::uint32_t>(subnormal)
                                                     : normal;
  return std::bit_cast<float>(bits | sign);
}

/// To nearest, ties to even. A NaN stays a (quiet) NaN; too large becomes infinite.
inline BF16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x0040u;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

/// To nearest, ties to even. A NaN stays a (quiet) NaN; too large becomes infinite.
inline F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 1/2 makes the processor round at 2^-24, the last bit of an f16 subnormal.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const std::uint32_t half = magnitude > 0x7f800000u    ? nan
                             : magnitude >= 0x47800000u ? 0x7c00u    // 65536 and more
                             : magnitude < 0x38800000u  ? subnormal  // below 2^-14
                                                        : normal;
  return {static_cast<std::uint16_t>(half | sign)};
}

/// Rounded to odd: an f32 from which a later rounding to 16 bits gives what one rounding would.
///
/// Source    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008
inline float to_f32_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}
inline BF16 to_bf16(double value) { return to_bf16(to_f32_odd(value)); }
inline F16 to_f16(double value) { return to_f16(to_f32_odd(value)); }

/// `count` elements of `source` (f32, f64, bf16 or f16) as elements of `target`'s type.
///
/// Dtypes    any of the four to any of the four, rounded once, to nearest, ties to even; equal
///           types are copied bit for bit
/// Layout    both contiguous, not overlapping, no alignment asked
/// Errors    ContractError for another type
/// Oracle    tests/core/convert_test.cpp: every f16 and bf16, halfway cases against long double
void convert_elements(DType source_type, const std::byte* source, DType target_type,
                      std::byte* target, std::int64_t count);

/// The same for tensors on a device, as work of ctx's stream.
///
/// Dtypes    on CUDA f32 and bf16
/// Layout    both contiguous, not overlapping
/// Errors    ContractError if shapes or devices disagree
void convert(ExecContext& ctx, ConstTensorView source, TensorView target);

namespace cpu {
void convert(ExecContext& ctx, ConstTensorView source, TensorView target);
}
namespace cuda {
void convert(ExecContext& ctx, ConstTensorView source, TensorView target);
}

}  // namespace coppice
