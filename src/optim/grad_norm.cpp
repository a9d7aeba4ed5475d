#include "optim/grad_norm.hpp"

namespace coppice {

double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters) {
  for (const Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    COPPICE_CHECK(parameter->grad.has_value() || parameter->value.numel() == 0,
                  "{} has no gradient", parameter->name);
    COPPICE_CHECK(ConstTensorView(parameter->grad).is_contiguous(),
                  "the gradient of {} is not contiguous", parameter->name);
  }
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::global_grad_norm(ctx, parameters);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::global_grad_norm(ctx, parameters);
      break;
  }
  throw_no_backend("global_grad_norm", ctx.device());
}

double clip_scale(double grad_norm, double max_grad_norm) {
  if (max_grad_norm <= 0 || !(grad_norm > max_grad_norm)) return 1.0;
  return max_grad_norm / (grad_norm + 1e-6);
}

}  // namespace coppice
