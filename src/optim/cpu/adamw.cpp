// The update is bound by memory, so one fused pass is all that matters. Highway picks the vector
// width at run time; the last elements of a block go through the same vector code in a small
// buffer, so an element's result does not depend on where a block ends.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/adamw.cpp"  // NOLINT
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "core/convert.hpp"
#include "core/parallel_for.hpp"
#include "optim/adamw.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void adamw_run(T* value, const T* grad, T* exp_avg, T* exp_avg_sq, std::int64_t count,
               const AdamWCoefficients& c, bool decay) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto set = [&](double x) { return hn::Set(d, static_cast<T>(x)); };
  const auto grad_scale = set(c.grad_scale), keep = set(decay ? c.keep : 1.0);
  const auto one_minus_beta1 = set(c.one_minus_beta1);
  const auto beta2 = set(c.beta2), one_minus_beta2 = set(c.one_minus_beta2);
  const auto step_size = set(c.step_size), denominator_scale = set(c.denominator_scale);
  const auto epsilon = set(c.epsilon);

  const auto update = [&](T* w, const T* dw, T* m1, T* m2) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, dw), grad_scale);
    const auto m = hn::LoadU(d, m1);
    const auto new_m = hn::MulAdd(one_minus_beta1, hn::Sub(g, m), m);
    const auto new_v = hn::MulAdd(beta2, hn::LoadU(d, m2), hn::Mul(hn::Mul(g, g), one_minus_beta2));
    const auto denominator = hn::MulAdd(hn::Sqrt(new_v), denominator_scale, epsilon);
    const auto kept = hn::Mul(hn::LoadU(d, w), keep);
    hn::StoreU(new_m, d, m1);
    hn::StoreU(new_v, d, m2);
    hn::StoreU(hn::NegMulAdd(step_size, hn::Div(new_m, denominator), kept), d, w);
  };

  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) update(value + i, grad + i, exp_avg + i, exp_avg_sq + i);
  if (i == count) return;
  constexpr std::size_t kMaxLanes = HWY_MAX_BYTES / sizeof(T);
  T w[kMaxLanes] = {}, dw[kMaxLanes] = {}, m1[kMaxLanes] = {}, m2[kMaxLanes] = {};
  const auto rest = static_cast<std::size_t>(count - i);
  std::copy_n(value + i, rest, w);
  std::copy_n(grad + i, rest, dw);
  std::copy_n(exp_avg + i, rest, m1);
  std::copy_n(exp_avg_sq + i, rest, m2);
  update(w, dw, m1, m2);
  std::copy_n(w, rest, value + i);
  std::copy_n(m1, rest, exp_avg + i);
  std::copy_n(m2, rest, exp_avg_sq + i);
}

void adamw_f32(float* value, const float* grad, float* exp_avg, float* exp_avg_sq,
               std::int64_t count, const AdamWCoefficients& c, bool decay) {
  adamw_run(value, grad, exp_avg, exp_avg_sq, count, c, decay);
}
void adamw_f64(double* value, const double* grad, double* exp_avg, double* exp_avg_sq,
               std::int64_t count, const AdamWCoefficients& c, bool decay) {
  adamw_run(value, grad, exp_avg, exp_avg_sq, count, c, decay);
}

}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace coppice::cpu {
namespace {

HWY_EXPORT(adamw_f32);
HWY_EXPORT(adamw_f64);

void run(float* value, const float* grad, float* exp_avg, float* exp_avg_sq, std::int64_t count,
         const AdamWCoefficients& c, bool decay) {
  HWY_DYNAMIC_DISPATCH(adamw_f32)(value, grad, exp_avg, exp_avg_sq, count, c, decay);
}
void run(double* value, const double* grad, double* exp_avg, double* exp_avg_sq, std::int64_t count,
         const AdamWCoefficients& c, bool decay) {
  HWY_DYNAMIC_DISPATCH(adamw_f64)(value, grad, exp_avg, exp_avg_sq, count, c, decay);
}

}  // namespace

void adamw_update(ExecContext& ctx, std::span<const AdamWTensors> tensors,
                  const AdamWCoefficients& coefficients) {
  constexpr std::int64_t kBlock = 1 << 16;
  struct Block {
    const AdamWTensors* tensors;
    std::int64_t begin, count;
  };
  std::vector<Block> blocks;
  for (const AdamWTensors& t : tensors) {
    for (std::int64_t begin = 0; begin < t.value.numel(); begin += kBlock) {
      blocks.push_back({&t, begin, std::min(kBlock, t.value.numel() - begin)});
    }
  }
  parallel_for(ctx, std::ssize(blocks), [&](std::int64_t i) {
    const auto& [t, begin, count] = blocks[static_cast<std::size_t>(i)];
    visit_float(t->value.dtype(), [&, begin = begin, count = count, t = t]<class T>(TypeTag<T>) {
      run(t->value.data<T>() + begin, t->grad.data<T>() + begin, t->exp_avg.data<T>() + begin,
          t->exp_avg_sq.data<T>() + begin, count, coefficients, t->decay);
    });
    if (t->rounded) {
      convert_elements(DType::kF32, t->value.bytes() + begin * size_of(DType::kF32), DType::kBF16,
                       t->rounded->bytes() + begin * size_of(DType::kBF16), count);
    }
  });
}

}  // namespace coppice::cpu
#endif  // HWY_ONCE
