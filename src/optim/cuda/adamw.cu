// The update on a CUDA device, one launch a tensor. It is bound by memory, so one fused pass is all
// that matters; the operations are those of the CPU, in their order.
#include "optim/adamw.hpp"

#include "core/cuda/rows.cuh"
#include "device/launch.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

/// AdamWCoefficients, rounded.
struct Coefficients {
  float grad_scale, keep, one_minus_beta1, beta2, one_minus_beta2, step_size, denominator_scale,
      epsilon;
};

struct Update {
  float* value;
  const float* grad;
  float *exp_avg, *exp_avg_sq;
  BF16* rounded;  // or null
  std::int64_t count;
};

template <int kCount>
__global__ void __launch_bounds__(kMostThreads) update_kernel(Update a, Coefficients c) {
  const auto i = (std::int64_t{blockIdx.x} * kMostThreads + threadIdx.x) * kCount;
  if (i >= a.count) return;
  const auto grad = load_floats<kCount>(a.grad + i);
  auto value = load_floats<kCount>(a.value + i);
  auto m = load_floats<kCount>(a.exp_avg + i), v = load_floats<kCount>(a.exp_avg_sq + i);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float g = grad[k] * c.grad_scale;
    m[k] = fmaf(c.one_minus_beta1, g - m[k], m[k]);
    v[k] = fmaf(c.beta2, v[k], g * g * c.one_minus_beta2);
    const float denominator = fmaf(sqrtf(v[k]), c.denominator_scale, c.epsilon);
    value[k] = fmaf(-c.step_size, m[k] / denominator, value[k] * c.keep);
  }
  store_floats<kCount>(a.exp_avg + i, m);
  store_floats<kCount>(a.exp_avg_sq + i, v);
  store_floats<kCount>(a.value + i, value);
  if (a.rounded != nullptr) store_floats<kCount>(a.rounded + i, value);
}

Coefficients rounded(const AdamWCoefficients& c, bool decay) {
  const auto f = [](double x) { return static_cast<float>(x); };
  return {f(c.grad_scale),      f(decay ? c.keep : 1.0), f(c.one_minus_beta1),   f(c.beta2),
          f(c.one_minus_beta2), f(c.step_size),          f(c.denominator_scale), f(c.epsilon)};
}

}  // namespace

void adamw_update(ExecContext& ctx, std::span<const AdamWTensors> tensors,
                  const AdamWCoefficients& coefficients) {
  for (const AdamWTensors& t : tensors) {
    const auto count = t.value.numel();
    const ConstTensorView copy = t.rounded ? ConstTensorView(*t.rounded) : t.value;
    const Update update{.value = t.value.data<float>(),
                        .grad = t.grad.data<float>(),
                        .exp_avg = t.exp_avg.data<float>(),
                        .exp_avg_sq = t.exp_avg_sq.data<float>(),
                        .rounded = t.rounded ? t.rounded->data<BF16>() : nullptr,
                        .count = count};
    const auto starts = [](ConstTensorView view) { return view.reshape({view.numel()}); };
    with_pack(
        [&](auto pack) {
          launch(ctx.stream, {blocks_for(count, kMostThreads * pack), kMostThreads},
                 update_kernel<pack>, update, rounded(coefficients, t.decay));
        },
        count, starts(t.value), starts(t.grad), starts(t.exp_avg), starts(t.exp_avg_sq),
        starts(copy));
  }
}

}  // namespace coppice::cuda
