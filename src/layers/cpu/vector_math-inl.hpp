// Vector building blocks of this folder's kernels, compiled once per instruction set by Highway.
// The usual include guard is Highway's toggle, because the file is included once per target.
#if defined(COPPICE_LAYERS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_LAYERS_CPU_VECTOR_MATH_INL_H_
#undef COPPICE_LAYERS_CPU_VECTOR_MATH_INL_H_
#else
#define COPPICE_LAYERS_CPU_VECTOR_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls f(tag, i) for vectors of elements from i in [0, n), then for the rest one element at a
/// time: f is written once and never reads beyond n.
template <class T, class F>
HWY_INLINE void for_vectors(std::int64_t n, F&& f) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(tag, i);
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) f(one, i);
}

template <class T, class D>
HWY_INLINE double sum_of_lanes(D tag, hn::Vec<D> v) {
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(tag, v)));
}

/// Sum over [0, n) of f(tag, i), in the type T; order depends on n and the vector length only.
template <class T, class F>
HWY_INLINE double sum_vectors(std::int64_t n, F&& f) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  auto sum0 = hn::Zero(tag), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::Add(sum0, f(tag, i));
    sum1 = hn::Add(sum1, f(tag, i + lanes));
    sum2 = hn::Add(sum2, f(tag, i + 2 * lanes));
    sum3 = hn::Add(sum3, f(tag, i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) sum0 = hn::Add(sum0, f(tag, i));
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  double total = static_cast<double>(hn::GetLane(hn::SumOfLanes(tag, sum)));
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) total += static_cast<double>(hn::GetLane(f(one, i)));
  return total;
}

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Int = std::int32_t;
  static constexpr int kMantissaBits = 23, kBias = 127, kDegree = 7;
  // exp is 0 below kLowest (its true value there is below 2e-38) and stays finite up to kHighest.
  static constexpr float kLowest = -87.0f, kHighest = 88.0f;
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
};
template <>
struct ExpConstants<double> {
  using Int = std::int64_t;
  static constexpr int kMantissaBits = 52, kBias = 1023, kDegree = 13;
  static constexpr double kLowest = -708.0, kHighest = 709.0;
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
};

/// exp(x) to about one unit in the last place. Arguments below kLowest give exactly 0, above
/// kHighest exp(kHighest); NaN stays NaN (Highway's own Exp makes it 0, which would hide a
/// diverged run).
template <class D>
HWY_INLINE hn::Vec<D> exp_keeping_nan(D tag, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  using Int = typename C::Int;
  const hn::RebindToSigned<D> int_tag;
  const auto lowest = hn::Set(tag, C::kLowest), highest = hn::Set(tag, C::kHighest);
  const auto is_zero = hn::Lt(x, lowest);
  x = hn::IfThenElse(is_zero, lowest, x);
  x = hn::IfThenElse(hn::Gt(x, highest), highest, x);
  // x = n ln2 + r: adding 1.5 * 2^mantissa rounds to an integer, whose bits are then in the low
  // end.
  const auto round = hn::Set(tag, C::kRound);
  const auto shifted = hn::MulAdd(x, hn::Set(tag, static_cast<T>(1.44269504088896340736)), round);
  const auto n = hn::Sub(shifted, round);
  auto r = hn::NegMulAdd(n, hn::Set(tag, C::kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(tag, C::kLn2Low), r);
  // Taylor in |r| <= ln2/2: the first term left out is below 6e-9 (f32) and 5e-18 (f64).
  static constexpr double kInverseFactorial[] = {1.0,
                                                 1.0,
                                                 1.0 / 2,
                                                 1.0 / 6,
                                                 1.0 / 24,
                                                 1.0 / 120,
                                                 1.0 / 720,
                                                 1.0 / 5040,
                                                 1.0 / 40320,
                                                 1.0 / 362880,
                                                 1.0 / 3628800,
                                                 1.0 / 39916800,
                                                 1.0 / 479001600,
                                                 1.0 / 6227020800.0};
  auto sum = hn::Set(tag, static_cast<T>(kInverseFactorial[C::kDegree]));
  for (int k = C::kDegree - 1; k >= 0; --k) {
    sum = hn::MulAdd(sum, r, hn::Set(tag, static_cast<T>(kInverseFactorial[k])));
  }
  const auto biased = hn::Add(hn::BitCast(int_tag, shifted), hn::Set(int_tag, Int{C::kBias}));
  const auto power = hn::BitCast(tag, hn::ShiftLeft<C::kMantissaBits>(biased));
  return hn::IfThenZeroElse(is_zero, hn::Mul(sum, power));
}

/// 1 / (1 + exp(-x))
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D tag, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto one = hn::Set(tag, static_cast<T>(1));
  return hn::Div(one, hn::Add(one, exp_keeping_nan(tag, hn::Neg(x))));
}

}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
