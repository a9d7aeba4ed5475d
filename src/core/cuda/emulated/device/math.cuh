#pragma once
// The approximate functions of real/device/math.cuh, here exact to rounding. Subnormal operands and
// results are zero, as there.
#include <cmath>
#include <limits>

namespace coppice::device {

inline float flush_subnormal(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline float fast_exp2(float x) { return flush_subnormal(std::exp2(flush_subnormal(x))); }
inline float fast_log2(float x) { return flush_subnormal(std::log2(flush_subnormal(x))); }
inline float fast_rsqrt(float x) {
  return flush_subnormal(static_cast<float>(1.0 / std::sqrt(double{flush_subnormal(x)})));
}

}  // namespace coppice::device
