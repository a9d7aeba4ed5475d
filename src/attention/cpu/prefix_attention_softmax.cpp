// The exponentials of attention: the online softmax of forward, and probabilities made again from a
// saved LSE in backward. Highway compiles them once per kind of CPU and chooses at run time.
#include "attention/cpu/prefix_attention_kernels.hpp"

#include <algorithm>
#include <limits>

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/prefix_attention_softmax.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include "attention/cpu/vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu {
namespace HWY_NAMESPACE {

/// ln(2)^i / i!, the coefficients of 2^r.
template <int kCount>
struct PowerSeries {
  constexpr PowerSeries() {
    double term = 1;
    for (int i = 0; i < kCount; ++i) {
      coefficient[i] = term;
      term *= 0.693147180559945309417 / (i + 1);
    }
  }
  double coefficient[kCount] = {};
};

/// 2^x to about an ulp for x <= 127 (1023 in double); 0 where x is so low that products with it
/// could be subnormal, which are slow; NaN stays. x = n + r with |r| <= 1/2; the next term of
/// either series is below a sixth of an ulp.
template <class T>
HWY_INLINE Vector<T> power_of_two(Vector<T> x) {
  const Tag<T> d;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kTerms = kSingle ? 8 : 14;
  constexpr int kMantissaBits = kSingle ? 23 : 52;
  constexpr PowerSeries<kTerms> kSeries;
  const hn::RebindToUnsigned<Tag<T>> du;
  // Adding 1.5 * 2^mantissa rounds to an integer; the exponent's bias sits there already.
  const auto magic =
      hn::Set(d, static_cast<T>(kSingle ? 12582912.0 + 127 : 6755399441055744.0 + 1023));
  const auto shifted = hn::Add(x, magic);
  const auto r = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::Set(d, static_cast<T>(kSeries.coefficient[kTerms - 1]));
  for (int i = kTerms - 2; i >= 0; --i) {
    p = hn::MulAdd(p, r, hn::Set(d, static_cast<T>(kSeries.coefficient[i])));
  }
  const auto power = hn::BitCast(d, hn::ShiftLeft<kMantissaBits>(hn::BitCast(du, shifted)));
  const auto underflow = hn::Lt(x, hn::Set(d, static_cast<T>(kSingle ? -100.0 : -980.0)));
  return hn::IfThenZeroElse(underflow, hn::Mul(p, power));
}

template <class T>
Index seen(const TileShape& tile, Index row) {
  return tile.square == 0 ? tile.full : tile.full + row / tile.heads + 1;
}

template <class T>
T row_max(const T* x, Index n) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto least = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto m0 = least, m1 = least, m2 = least, m3 = least;
  Index i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + step));
    m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * step));
    m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * step));
  }
  for (; i + step <= n; i += step) m0 = hn::Max(m0, hn::LoadU(d, x + i));
  if (i < n) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(n - i));
    m1 = hn::Max(m1, hn::IfThenElse(mask, hn::LoadU(d, x + i), least));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

/// x = 2^(x - max); returns the sum.
template <class T>
T power_row(T* x, Index n, T max) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto shift = hn::Set(d, max);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  Index i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    const auto e0 = power_of_two<T>(hn::Sub(hn::LoadU(d, x + i), shift));
    const auto e1 = power_of_two<T>(hn::Sub(hn::LoadU(d, x + i + step), shift));
    hn::StoreU(e0, d, x + i);
    hn::StoreU(e1, d, x + i + step);
    s0 = hn::Add(s0, e0);
    s1 = hn::Add(s1, e1);
  }
  for (; i < n; i += step) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(n - i));
    const auto e = hn::IfThenElseZero(mask, power_of_two<T>(hn::Sub(hn::LoadU(d, x + i), shift)));
    hn::StoreU(e, d, x + i);
    s0 = hn::Add(s0, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

template <class T>
void softmax_rows(const TileShape& tile, T* scores, T* max, T* sum, T* correction) {
  const Tag<T> d;
  T next[kTilePadding];
  // Blocks of rows small enough for the first cache between the two looks at them.
  for (Index begin = 0; begin < tile.rows; begin += kTilePadding) {
    const Index rows = std::min(kTilePadding, tile.rows - begin);
    for (Index i = 0; i < rows; ++i) {
      const Index row = begin + i;
      next[i] = std::max(max[row], row_max(scores + row * tile.stride, seen<T>(tile, row)));
    }
    for (Index i = rows; i < kTilePadding; ++i) next[i] = 0;
    for (Index i = 0; i < kTilePadding; i += lanes<T>()) {
      const auto before = hn::LoadU(d, max + begin + i);
      hn::StoreU(power_of_two<T>(hn::Sub(before, hn::LoadU(d, next + i))), d,
                 correction + begin + i);
    }
    for (Index i = 0; i < rows; ++i) {
      const Index row = begin + i;
      const T added = power_row(scores + row * tile.stride, seen<T>(tile, row), next[i]);
      sum[row] = sum[row] * correction[row] + added;
      max[row] = next[i];
    }
  }
}

template <class T>
void gradient_rows(const TileShape& tile, const T* lse, const T* delta, T* scores, T* d_p) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index row = 0; row < tile.rows; ++row) {
    const auto shift = hn::Set(d, lse[row]), level = hn::Set(d, delta[row]);
    T* s = scores + row * tile.stride;
    T* g = d_p + row * tile.stride;
    const Index n = seen<T>(tile, row);
    for (Index i = 0; i < n; i += step) {  // may run over into the padding
      const auto p = power_of_two<T>(hn::Sub(hn::LoadU(d, s + i), shift));
      hn::StoreU(p, d, s + i);
      hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, g + i), level)), d, g + i);
    }
  }
}

// HWY_EXPORT takes plain functions: one name per type.
#define COPPICE_KERNELS(T, Suffix)                                                                \
  void Softmax##Suffix(const TileShape& tile, T* scores, T* max, T* sum, T* correction) {         \
    softmax_rows<T>(tile, scores, max, sum, correction);                                          \
  }                                                                                               \
  void Gradient##Suffix(const TileShape& tile, const T* lse, const T* delta, T* scores, T* d_p) { \
    gradient_rows<T>(tile, lse, delta, scores, d_p);                                              \
  }
COPPICE_KERNELS(float, F32)
COPPICE_KERNELS(double, F64)
#undef COPPICE_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace coppice::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {

#define COPPICE_DISPATCH(T, Suffix)                                                            \
  HWY_EXPORT(Softmax##Suffix);                                                                 \
  void softmax_tile(const TileShape& tile, T* scores, T* max, T* sum, T* correction) {         \
    HWY_DYNAMIC_DISPATCH(Softmax##Suffix)(tile, scores, max, sum, correction);                 \
  }                                                                                            \
  HWY_EXPORT(Gradient##Suffix);                                                                \
  void gradient_tile(const TileShape& tile, const T* lse, const T* delta, T* scores, T* d_p) { \
    HWY_DYNAMIC_DISPATCH(Gradient##Suffix)(tile, lse, delta, scores, d_p);                     \
  }
COPPICE_DISPATCH(float, F32)
COPPICE_DISPATCH(double, F64)
#undef COPPICE_DISPATCH

}  // namespace coppice::cpu
#endif  // HWY_ONCE
