#pragma once
// Element types as values, and the one place where such a value becomes a C++ type.
#include <cstdint>
#include <string_view>

#include "core/error.hpp"

namespace coppice {

enum class DType : std::uint8_t { kF32, kF64, kBF16, kF16, kI32, kI64 };

/// Storage of a 16-bit float; arithmetic happens in f32 (core/convert.hpp).
struct BF16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
  }
  return 0;
}

/// What sums over elements of `storage` have: gradients of weights, logits, softmax statistics.
constexpr DType accumulation_of(DType storage) {
  return size_of(storage) == 2 ? DType::kF32 : storage;
}

/// "f32", "f64", "bf16", "f16", "i32", "i64".
std::string_view name_of(DType dtype);

template <class T>
inline constexpr DType kDTypeOf = [] {
  static_assert(sizeof(T) == 0, "not an element type");
  return DType::kF32;
}();
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<BF16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::kI64;

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f with the C++ type of a compute dtype: `visit_float(d, [&]<class T>(TypeTag<T>) {...})`.
template <class F>
decltype(auto) visit_float(DType dtype, F&& f) {
  if (dtype == DType::kF64) return f(TypeTag<double>{});
  COPPICE_CHECK(dtype == DType::kF32, "the CPU computes in f32 or f64, not in {}", name_of(dtype));
  return f(TypeTag<float>{});
}

}  // namespace coppice
