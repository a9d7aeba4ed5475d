#include "optim/grad_norm.hpp"

#include <cmath>
#include <vector>

#include "core/build_config.hpp"

namespace coppice {

double sum_of_squares(ExecContext& ctx, std::span<Parameter* const> parameters, RowShare share) {
  std::vector<ConstTensorView> runs;
  for (const Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    COPPICE_CHECK(parameter->grad.has_value() || parameter->value.numel() == 0,
                  "{} has no gradient", parameter->name);
    const ConstTensorView grad = parameter->grad;
    COPPICE_CHECK(grad.is_contiguous(), "the gradient of {} is not contiguous", parameter->name);
    for (const RowRange& rows : primary_rows(*parameter, share.of(grad.shape()[0]))) {
      runs.push_back(grad.rows(rows.begin, rows.count()));
    }
  }
  const TraceScope scope(ctx.trace, "sum_of_squares");
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::sum_of_squares(ctx, runs);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::sum_of_squares(ctx, runs);
      break;
  }
  throw_no_backend("sum_of_squares", ctx.device());
}

double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters) {
  return std::sqrt(sum_of_squares(ctx, parameters));
}

double global_grad_norm(ExecContext& ctx, std::span<Parameter* const> parameters, RowShare share,
                        Communicator& world) {
  double squares = sum_of_squares(ctx, parameters, share);
  world.all_reduce(ctx.stream, host_view(&squares, {1}), ReduceOp::kSum);
  return std::sqrt(squares);
}

double clip_scale(double grad_norm, double max_grad_norm) {
  if (max_grad_norm <= 0 || !(grad_norm > max_grad_norm)) return 1.0;
  return max_grad_norm / (grad_norm + 1e-6);
}

}  // namespace coppice
