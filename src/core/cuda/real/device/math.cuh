#pragma once
// The processor's approximate functions, where a kernel's speed hangs on them. Everything else
// (sqrtf, expf, division) is written plainly and is accurate. Subnormal operands and results are
// zero in all of them.
#include <cmath>

namespace coppice::device {

/// 2^x, 2 units in the last place at most.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x): absolute error 2^-22 for x in (0.5, 2), else relative 2^-22.6; log2(0) = -inf.
__device__ __forceinline__ float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / sqrt(x), relative error 2^-22.9 at most.
__device__ __forceinline__ float fast_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace coppice::device
