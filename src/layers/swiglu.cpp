// Checks and dispatch of the gated activation.
#include "layers/swiglu.hpp"

#include "core/build_config.hpp"

namespace coppice {
namespace {

void check_pair(ConstTensorView gate_up, ConstTensorView hidden) {
  COPPICE_CHECK(gate_up.shape().rank() == 2 && gate_up.shape()[1] % 2 == 0,
                "swiglu: gate_up is [T, 2F], not {}", gate_up.shape());
  COPPICE_CHECK(hidden.shape() == Shape({gate_up.shape()[0], gate_up.shape()[1] / 2}),
                "swiglu: hidden {} for gate_up {}", hidden.shape(), gate_up.shape());
  COPPICE_CHECK(hidden.dtype() == gate_up.dtype(), "swiglu: dtypes {} and {}",
                name_of(hidden.dtype()), name_of(gate_up.dtype()));
}

}  // namespace

void swiglu_forward(ExecContext& ctx, ConstTensorView gate_up, TensorView hidden) {
  check_pair(gate_up, hidden);
  const TraceScope scope(ctx.trace, "swiglu_forward", {.rows = gate_up.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::swiglu_forward(ctx, gate_up, hidden);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::swiglu_forward(ctx, gate_up, hidden);
      break;
  }
  throw_no_backend("swiglu_forward", ctx.device());
}

void swiglu_backward(ExecContext& ctx, ConstTensorView gate_up, ConstTensorView d_hidden,
                     TensorView d_gate_up) {
  check_pair(gate_up, d_hidden);
  COPPICE_CHECK(d_gate_up.spec() == gate_up.spec(), "swiglu: d_gate_up {} for gate_up {}",
                d_gate_up.shape(), gate_up.shape());
  const TraceScope scope(ctx.trace, "swiglu_backward", {.rows = gate_up.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::swiglu_backward(ctx, gate_up, d_hidden, d_gate_up);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda)
        return cuda::swiglu_backward(ctx, gate_up, d_hidden, d_gate_up);
      break;
  }
  throw_no_backend("swiglu_backward", ctx.device());
}

}  // namespace coppice
