// The gated activation on the CPU: rows over threads, columns in vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/cpu/swiglu.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include "core/parallel_for.hpp"
#include "layers/cpu/vector_math-inl.hpp"
#include "layers/swiglu.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void swiglu_row(std::int64_t n, const T* gate, const T* up, T* hidden) {
  for_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto g = hn::LoadU(tag, gate + i);
    hn::StoreU(hn::Mul(hn::Mul(g, sigmoid(tag, g)), hn::LoadU(tag, up + i)), tag, hidden + i);
  });
}

template <class T>
void swiglu_grad_row(std::int64_t n, const T* gate, const T* up, const T* d_hidden, T* d_gate,
                     T* d_up) {
  for_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto one = hn::Set(tag, T{1});
    const auto g = hn::LoadU(tag, gate + i), u = hn::LoadU(tag, up + i);
    const auto d = hn::LoadU(tag, d_hidden + i);
    const auto s = sigmoid(tag, g);
    const auto slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
    hn::StoreU(hn::Mul(hn::Mul(d, u), slope), tag, d_gate + i);
    hn::StoreU(hn::Mul(hn::Mul(d, g), s), tag, d_up + i);
  });
}

void row_f32(std::int64_t n, const float* gate, const float* up, float* hidden) {
  swiglu_row(n, gate, up, hidden);
}
void row_f64(std::int64_t n, const double* gate, const double* up, double* hidden) {
  swiglu_row(n, gate, up, hidden);
}
void grad_row_f32(std::int64_t n, const float* gate, const float* up, const float* d_hidden,
                  float* d_gate, float* d_up) {
  swiglu_grad_row(n, gate, up, d_hidden, d_gate, d_up);
}
void grad_row_f64(std::int64_t n, const double* gate, const double* up, const double* d_hidden,
                  double* d_gate, double* d_up) {
  swiglu_grad_row(n, gate, up, d_hidden, d_gate, d_up);
}

}  // namespace
}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {
namespace {

HWY_EXPORT(row_f32);
HWY_EXPORT(row_f64);
HWY_EXPORT(grad_row_f32);
HWY_EXPORT(grad_row_f64);

template <class T>
auto row_body() {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(row_f32);
  } else {
    return HWY_DYNAMIC_DISPATCH(row_f64);
  }
}
template <class T>
auto grad_row_body() {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(grad_row_f32);
  } else {
    return HWY_DYNAMIC_DISPATCH(grad_row_f64);
  }
}

}  // namespace

void swiglu_forward(ExecContext& ctx, ConstTensorView gate_up, TensorView hidden) {
  const auto width = hidden.shape()[1];
  visit_float(hidden.dtype(), [&]<class T>(TypeTag<T>) {
    const auto body = row_body<T>();
    parallel_for_ranges(ctx, hidden.shape()[0], 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* gate = gate_up.data<T>() + t * gate_up.strides()[0];
        body(width, gate, gate + width, hidden.data<T>() + t * hidden.strides()[0]);
      }
    });
  });
}

void swiglu_backward(ExecContext& ctx, ConstTensorView gate_up, ConstTensorView d_hidden,
                     TensorView d_gate_up) {
  const auto width = d_hidden.shape()[1];
  visit_float(d_hidden.dtype(), [&]<class T>(TypeTag<T>) {
    const auto body = grad_row_body<T>();
    parallel_for_ranges(ctx, d_hidden.shape()[0], 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* gate = gate_up.data<T>() + t * gate_up.strides()[0];
        T* d_gate = d_gate_up.data<T>() + t * d_gate_up.strides()[0];
        body(width, gate, gate + width, d_hidden.data<T>() + t * d_hidden.strides()[0], d_gate,
             d_gate + width);
      }
    });
  });
}

}  // namespace coppice::cpu
#endif  // HWY_ONCE
