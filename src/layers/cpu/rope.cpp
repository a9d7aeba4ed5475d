// The rotation on the CPU: rows over threads, pairs in vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/cpu/rope.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include "core/parallel_for.hpp"
#include "layers/cpu/vector_math-inl.hpp"
#include "layers/rope.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace {

// `sign` is 1 forward and -1 backward.
template <class T>
void turn(std::int64_t pairs, const T* cos, const T* sin, T sign, T* x) {
  for_vectors<T>(pairs, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto c = hn::LoadU(tag, cos + i);
    const auto s = hn::Mul(hn::LoadU(tag, sin + i), hn::Set(tag, sign));
    const auto first = hn::LoadU(tag, x + i), second = hn::LoadU(tag, x + pairs + i);
    hn::StoreU(hn::NegMulAdd(second, s, hn::Mul(first, c)), tag, x + i);
    hn::StoreU(hn::MulAdd(first, s, hn::Mul(second, c)), tag, x + pairs + i);
  });
}

void turn_f32(std::int64_t pairs, const float* cos, const float* sin, float sign, float* x) {
  turn(pairs, cos, sin, sign, x);
}
void turn_f64(std::int64_t pairs, const double* cos, const double* sin, double sign, double* x) {
  turn(pairs, cos, sin, sign, x);
}

}  // namespace
}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {
namespace {

HWY_EXPORT(turn_f32);
HWY_EXPORT(turn_f64);

template <class T>
auto turn_body() {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(turn_f32);
  } else {
    return HWY_DYNAMIC_DISPATCH(turn_f64);
  }
}

}  // namespace

void rope(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
          TensorView x, RopeDirection direction) {
  const auto heads = x.shape()[1], pairs = x.shape()[2] / 2;
  visit_float(x.dtype(), [&]<class T>(TypeTag<T>) {
    const auto body = turn_body<T>();
    const T* cos = table.cos().data<T>();
    const T* sin = table.sin().data<T>();
    const T sign = direction == RopeDirection::kForward ? T{1} : T{-1};
    parallel_for_ranges(ctx, x.shape()[0], 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto at = positions[static_cast<std::size_t>(t)] * pairs;
        for (std::int64_t h = 0; h < heads; ++h) {
          body(pairs, cos + at, sin + at, sign,
               x.data<T>() + t * x.strides()[0] + h * x.strides()[1]);
        }
      }
    });
  });
}

}  // namespace coppice::cpu
#endif  // HWY_ONCE
