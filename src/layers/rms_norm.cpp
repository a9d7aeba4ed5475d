// Checks and dispatch of the norm, and the layer that holds its weight.
#include "layers/rms_norm.hpp"

#include "core/build_config.hpp"
#include "layers/cpu/row_blocks.hpp"
#include "layers/cuda/row_blocks.hpp"

namespace coppice {
namespace {

void check_norm(ConstTensorView x, ConstTensorView gamma, ConstTensorView rstd) {
  const Shape& shape = x.shape();
  COPPICE_CHECK(shape.rank() == 2 || shape.rank() == 3,
                "rms_norm: x is [T, N] or [T, H, N], not {}", shape);
  COPPICE_CHECK(shape.back() > 0, "rms_norm: vectors of width 0 in {}", shape);
  COPPICE_CHECK(gamma.shape() == Shape({shape.back()}), "rms_norm: gamma {} for x {}",
                gamma.shape(), shape);
  COPPICE_CHECK(rstd.shape() == Shape(shape.extents().first(shape.rank() - 1)),
                "rms_norm: rstd {} for x {}", rstd.shape(), shape);
  COPPICE_CHECK(gamma.dtype() == x.dtype() && rstd.dtype() == accumulation_of(x.dtype()),
                "rms_norm: dtypes {}, {}, {}", name_of(x.dtype()), name_of(gamma.dtype()),
                name_of(rstd.dtype()));
  COPPICE_CHECK(rstd.is_contiguous(), "rms_norm: rstd must be contiguous");
}

void check_like(ConstTensorView tensor, ConstTensorView x, const char* name) {
  COPPICE_CHECK(tensor.spec() == x.spec(), "rms_norm: {} is {} {}, x is {} {}", name,
                name_of(tensor.dtype()), tensor.shape(), name_of(x.dtype()), x.shape());
}

void dispatch_forward(ExecContext& ctx, ConstTensorView x, std::optional<ConstTensorView> delta,
                      ConstTensorView gamma, double epsilon, std::optional<TensorView> sum,
                      TensorView y, TensorView rstd) {
  const TraceScope scope(ctx.trace, "rms_norm_forward", {.rows = x.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::add_rms_norm_forward(ctx, x, delta, gamma, epsilon, sum, y, rstd);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::add_rms_norm_forward(ctx, x, delta, gamma, epsilon, sum, y, rstd);
      }
      break;
  }
  throw_no_backend("rms_norm_forward", ctx.device());
}

}  // namespace

void rms_norm_forward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma, double epsilon,
                      TensorView y, TensorView rstd) {
  check_norm(x, gamma, rstd);
  check_like(y, x, "y");
  dispatch_forward(ctx, x, std::nullopt, gamma, epsilon, std::nullopt, y, rstd);
}

void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x, ConstTensorView delta,
                          ConstTensorView gamma, double epsilon, TensorView sum, TensorView y,
                          TensorView rstd) {
  check_norm(x, gamma, rstd);
  check_like(delta, x, "delta");
  check_like(sum, x, "sum");
  check_like(y, x, "y");
  dispatch_forward(ctx, x, delta, gamma, epsilon, sum, y, rstd);
}

void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView rstd, ConstTensorView dy,
                       std::optional<ConstTensorView> residual_grad, TensorView dx,
                       std::optional<TensorView> dgamma) {
  check_norm(x, gamma, rstd);
  check_like(dy, x, "dy");
  check_like(dx, x, "dx");
  if (residual_grad) check_like(*residual_grad, x, "residual_grad");
  if (dgamma) {
    COPPICE_CHECK(dgamma->shape() == gamma.shape() && dgamma->is_contiguous() &&
                      dgamma->dtype() == accumulation_of(gamma.dtype()),
                  "rms_norm: dgamma is {} {} for gamma {} {}", name_of(dgamma->dtype()),
                  dgamma->shape(), name_of(gamma.dtype()), gamma.shape());
  }
  const TraceScope scope(ctx.trace, "rms_norm_backward", {.rows = x.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::rms_norm_backward(ctx, x, gamma, rstd, dy, residual_grad, dx, dgamma);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::rms_norm_backward(ctx, x, gamma, rstd, dy, residual_grad, dx, dgamma);
      }
      break;
  }
  throw_no_backend("rms_norm_backward", ctx.device());
}

std::int64_t rms_norm_scratch_bytes(DType dtype, std::int64_t tokens, std::int64_t width) {
  const auto blocks =
      dtype == DType::kBF16 ? cuda::RowBlocks(tokens).count() : cpu::RowBlocks(tokens).count();
  return Arena::leased_bytes(accumulation_of(dtype), {blocks, width});
}

RmsNorm::RmsNorm(const ParallelContext& parallel, const ParameterStorage& storage,
                 const std::string& name, std::int64_t width, double epsilon,
                 ReductionGroup reduction)
    : weight_(make_parameter(storage, name + ".weight",
                             {{.name = name + ".weight",
                               .shard = Shard::whole({width}),
                               .reduction = reduction,
                               .is_primary = parallel.is_first_tensor_rank()}},
                             WeightDecay::kNo)),
      epsilon_(epsilon) {}

void RmsNorm::forward(ExecContext& ctx, ConstTensorView x, TensorView y, TensorView rstd) const {
  rms_norm_forward(ctx, x, weight_.value, epsilon_, y, rstd);
}

void RmsNorm::forward_sum(ExecContext& ctx, ConstTensorView x, ConstTensorView delta,
                          TensorView sum, TensorView y, TensorView rstd) const {
  add_rms_norm_forward(ctx, x, delta, weight_.value, epsilon_, sum, y, rstd);
}

void RmsNorm::backward(ExecContext& ctx, ConstTensorView x, ConstTensorView rstd,
                       ConstTensorView dy, std::optional<ConstTensorView> residual_grad,
                       TensorView dx) {
  std::optional<TensorView> dgamma;
  if (weight_.trainable) dgamma = weight_.grad;
  rms_norm_backward(ctx, x, weight_.value, rstd, dy, residual_grad, dx, dgamma);
}

}  // namespace coppice
