// The norm on the CPU: rows are spread over threads, a row is vector code. Sums of squares are in
// the tensor's type; the reciprocal root is taken in double and rounded once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/cpu/rms_norm.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include <array>
#include <cmath>

#include "core/parallel_for.hpp"
#include "layers/cpu/row_blocks.hpp"
#include "layers/cpu/vector_math-inl.hpp"
#include "layers/rms_norm.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace {

template <class T>
T forward_vector(std::int64_t n, const T* x, const T* delta, const T* gamma, double epsilon, T* sum,
                 T* y) {
  if (delta != nullptr) {
    for_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(tag, x + i), hn::LoadU(tag, delta + i)), tag, sum + i);
    });
    x = sum;
  }
  const double squares = sum_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(tag, x + i);
    return hn::Mul(v, v);
  });
  const T rstd = static_cast<T>(1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon));
  for_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto normed = hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, rstd));
    hn::StoreU(hn::Mul(normed, hn::LoadU(tag, gamma + i)), tag, y + i);
  });
  return rstd;
}

// dx may be dy or residual_grad: every element is read before it is written.
template <class T>
void backward_vector(std::int64_t n, const T* x, const T* gamma, T rstd, const T* dy,
                     const T* residual_grad, T* dx, T* dgamma) {
  const double dot = sum_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(tag, dy + i), hn::LoadU(tag, gamma + i));
    return hn::Mul(g, hn::LoadU(tag, x + i));
  });
  const T mean = static_cast<T>(dot * static_cast<double>(rstd) / static_cast<double>(n));
  for_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto r = hn::Set(tag, rstd);
    const auto normed = hn::Mul(hn::LoadU(tag, x + i), r);
    const auto g = hn::LoadU(tag, dy + i);
    const auto inner =
        hn::NegMulAdd(normed, hn::Set(tag, mean), hn::Mul(g, hn::LoadU(tag, gamma + i)));
    auto out = hn::Mul(inner, r);
    if (residual_grad != nullptr) out = hn::Add(out, hn::LoadU(tag, residual_grad + i));
    hn::StoreU(out, tag, dx + i);
    if (dgamma != nullptr) {
      hn::StoreU(hn::MulAdd(g, normed, hn::LoadU(tag, dgamma + i)), tag, dgamma + i);
    }
  });
}

float forward_f32(std::int64_t n, const float* x, const float* delta, const float* gamma,
                  double epsilon, float* sum, float* y) {
  return forward_vector(n, x, delta, gamma, epsilon, sum, y);
}
double forward_f64(std::int64_t n, const double* x, const double* delta, const double* gamma,
                   double epsilon, double* sum, double* y) {
  return forward_vector(n, x, delta, gamma, epsilon, sum, y);
}
void backward_f32(std::int64_t n, const float* x, const float* gamma, float rstd, const float* dy,
                  const float* residual_grad, float* dx, float* dgamma) {
  backward_vector(n, x, gamma, rstd, dy, residual_grad, dx, dgamma);
}
void backward_f64(std::int64_t n, const double* x, const double* gamma, double rstd,
                  const double* dy, const double* residual_grad, double* dx, double* dgamma) {
  backward_vector(n, x, gamma, rstd, dy, residual_grad, dx, dgamma);
}

}  // namespace
}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {
namespace {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_f64);

template <class T>
auto forward_body() {
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(forward_f32);
  else
    return HWY_DYNAMIC_DISPATCH(forward_f64);
}
template <class T>
auto backward_body() {
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(backward_f32);
  else
    return HWY_DYNAMIC_DISPATCH(backward_f64);
}

/// [T, N] and [T, H, N] alike: the address of vector (t, h).
template <class T, class View>
class Vectors {
 public:
  explicit Vectors(const View& view)
      : data_(view.template data<T>()),
        row_(view.strides()[0]),
        head_(view.shape().rank() == 3 ? view.strides()[1] : 0) {}
  auto at(std::int64_t t, std::int64_t h) const { return data_ + t * row_ + h * head_; }

 private:
  decltype(std::declval<View>().template data<T>()) data_;
  std::int64_t row_, head_;
};
template <class T, class View>
Vectors<T, View> vectors(const View& view) {
  return Vectors<T, View>(view);
}

// Columns summed at a time, so that their sums stay in the first cache.
constexpr std::int64_t kColumnTile = 64;

/// total += sum over rows of partial, in row order.
template <class T>
void add_blocks(ExecContext& ctx, ConstTensorView partial, TensorView total) {
  const auto blocks = partial.shape()[0], width = partial.shape()[1];
  parallel_for(ctx, (width + kColumnTile - 1) / kColumnTile, [&](std::int64_t tile) {
    const auto begin = tile * kColumnTile, count = std::min(kColumnTile, width - begin);
    std::array<double, kColumnTile> sums{};
    for (std::int64_t block = 0; block < blocks; ++block) {
      const T* row = partial.data<T>() + block * width + begin;
      for (std::int64_t i = 0; i < count; ++i) {
        sums[static_cast<std::size_t>(i)] += static_cast<double>(row[i]);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      total.data<T>()[begin + i] += static_cast<T>(sums[static_cast<std::size_t>(i)]);
    }
  });
}

}  // namespace

void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x, std::optional<ConstTensorView> delta,
                          ConstTensorView gamma, double epsilon, std::optional<TensorView> sum,
                          TensorView y, TensorView rstd) {
  const auto tokens = x.shape()[0], width = x.shape().back();
  const auto heads = x.shape().rank() == 3 ? x.shape()[1] : 1;
  visit_float(x.dtype(), [&]<class T>(TypeTag<T>) {
    const auto body = forward_body<T>();
    const auto xs = vectors<T>(x);
    const auto deltas = vectors<T>(delta.value_or(x));
    const auto sums = vectors<T>(sum.value_or(y));
    const auto ys = vectors<T>(y);
    parallel_for_ranges(ctx, tokens, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          rstd.data<T>()[t * heads + h] =
              body(width, xs.at(t, h), delta ? deltas.at(t, h) : nullptr, gamma.data<T>(), epsilon,
                   sum ? sums.at(t, h) : nullptr, ys.at(t, h));
        }
      }
    });
  });
}

void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView rstd, ConstTensorView dy,
                       std::optional<ConstTensorView> residual_grad, TensorView dx,
                       std::optional<TensorView> dgamma) {
  const auto tokens = x.shape()[0], width = x.shape().back();
  const auto heads = x.shape().rank() == 3 ? x.shape()[1] : 1;
  const RowBlocks blocks(tokens);
  ScratchScope scratch(ctx.scratch);
  TensorView partial = scratch.lease(x.dtype(), {blocks.count(), width});
  visit_float(x.dtype(), [&]<class T>(TypeTag<T>) {
    const auto body = backward_body<T>();
    const auto xs = vectors<T>(x);
    const auto dys = vectors<T>(dy);
    const auto residuals = vectors<T>(residual_grad.value_or(x));
    const auto dxs = vectors<T>(dx);
    parallel_for(ctx, blocks.count(), [&](std::int64_t block) {
      T* sums = partial.data<T>() + block * width;
      std::fill_n(sums, width, T{0});
      for (std::int64_t t = blocks.begin(block); t < blocks.end(block); ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          body(width, xs.at(t, h), gamma.data<T>(), rstd.data<T>()[t * heads + h], dys.at(t, h),
               residual_grad ? residuals.at(t, h) : nullptr, dxs.at(t, h), dgamma ? sums : nullptr);
        }
      }
    });
    if (dgamma) add_blocks<T>(ctx, partial, *dgamma);
  });
}

}  // namespace coppice::cpu
#endif  // HWY_ONCE
