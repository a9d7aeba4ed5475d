// Checks and dispatch of the row helpers.
#include "layers/rows.hpp"

#include "core/build_config.hpp"

namespace coppice {
namespace {

void check_rows(const char* op, ConstTensorView x, std::span<const std::int64_t> rows,
                ConstTensorView picked, DType picked_dtype) {
  COPPICE_CHECK(x.shape().rank() == 2 && picked_dtype == picked.dtype() &&
                    picked.shape() == Shape({std::ssize(rows), x.shape()[1]}),
                "{}: {} rows of x {} {} as {} {}", op, rows.size(), name_of(x.dtype()), x.shape(),
                name_of(picked.dtype()), picked.shape());
  for (const auto row : rows) {
    COPPICE_CHECK(row >= 0 && row < x.shape()[0], "{}: row {} of {}", op, row, x.shape()[0]);
  }
}

void check_ascending(const char* op, std::span<const std::int64_t> rows) {
  for (std::size_t i = 1; i < rows.size(); ++i) {
    COPPICE_CHECK(rows[i - 1] < rows[i], "{}: row {} after row {}", op, rows[i], rows[i - 1]);
  }
}

void check_bias(const char* op, ConstTensorView bias, ConstTensorView y, DType bias_dtype) {
  COPPICE_CHECK(
      y.shape().rank() == 2 && bias.shape() == Shape({y.shape()[1]}) && bias.dtype() == bias_dtype,
      "{}: bias {} {} for {} {}", op, name_of(bias.dtype()), bias.shape(), name_of(y.dtype()),
      y.shape());
}

}  // namespace

void add_rows(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum) {
  COPPICE_CHECK(a.shape().rank() == 2 && a.spec() == b.spec() && a.spec() == sum.spec(),
                "add_rows: {} + {} into {}", a.shape(), b.shape(), sum.shape());
  const TraceScope scope(ctx.trace, "add_rows", {.rows = a.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::add_rows(ctx, a, b, sum);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::add_rows(ctx, a, b, sum);
      break;
  }
  throw_no_backend("add_rows", ctx.device());
}

void add_bias(ExecContext& ctx, ConstTensorView bias, TensorView y) {
  check_bias("add_bias", bias, y, y.dtype());
  const TraceScope scope(ctx.trace, "add_bias", {.rows = y.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::add_bias(ctx, bias, y);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::add_bias(ctx, bias, y);
      break;
  }
  throw_no_backend("add_bias", ctx.device());
}

void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias) {
  check_bias("bias_backward", dbias, dy, accumulation_of(dy.dtype()));
  const TraceScope scope(ctx.trace, "bias_backward", {.rows = dy.shape()[0]});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::bias_backward(ctx, dy, dbias);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::bias_backward(ctx, dy, dbias);
      break;
  }
  throw_no_backend("bias_backward", ctx.device());
}

void gather_rows(ExecContext& ctx, ConstTensorView x, std::span<const std::int64_t> rows,
                 TensorView picked) {
  check_rows("gather_rows", x, rows, picked, x.dtype());
  const TraceScope scope(ctx.trace, "gather_rows", {.rows = std::ssize(rows)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::gather_rows(ctx, x, rows, picked);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::gather_rows(ctx, x, rows, picked);
      break;
  }
  throw_no_backend("gather_rows", ctx.device());
}

void scatter_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                  TensorView dx) {
  check_rows("scatter_rows", dx, rows, d_picked, dx.dtype());
  check_ascending("scatter_rows", rows);
  const TraceScope scope(ctx.trace, "scatter_rows", {.rows = std::ssize(rows)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::scatter_rows(ctx, d_picked, rows, dx);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::scatter_rows(ctx, d_picked, rows, dx);
      break;
  }
  throw_no_backend("scatter_rows", ctx.device());
}

void add_to_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                 TensorView dx) {
  const bool widened = d_picked.dtype() != dx.dtype();
  check_rows("add_to_rows", dx, rows, d_picked, widened ? accumulation_of(dx.dtype()) : dx.dtype());
  check_ascending("add_to_rows", rows);
  const TraceScope scope(ctx.trace, "add_to_rows", {.rows = std::ssize(rows)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::add_to_rows(ctx, d_picked, rows, dx);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::add_to_rows(ctx, d_picked, rows, dx);
      break;
  }
  throw_no_backend("add_to_rows", ctx.device());
}

}  // namespace coppice
