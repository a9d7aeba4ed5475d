#pragma once
// Row-wise odds and ends between the large ops: adding two tensors, adding a bias to every row,
// picking rows out of a packed micro-batch and putting their gradients back.
#include <span>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// sum = a + b; sum may be a or b itself.
///
/// Shapes    a, b, sum [T, N], rows may be apart
/// Dtypes    all f32 or all f64; on CUDA bf16, with f32 between (all ops of this file)
/// Repeats   bitwise, for any thread count (all ops of this file)
void add_rows(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum);

/// y += bias in every row.
///
/// Shapes    bias [N]   y [T, N]
void add_bias(ExecContext& ctx, ConstTensorView bias, TensorView y);

/// dbias += sum over rows of dy, in fixed order.
///
/// Dtypes    dbias like dy; f32 for bf16
void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias);

/// picked[i] = x[rows[i]].
///
/// Shapes    x [T, N]   rows [n]   picked [n, N]
/// Errors    ContractError if a row is outside x
void gather_rows(ExecContext& ctx, ConstTensorView x, std::span<const std::int64_t> rows,
                 TensorView picked);

/// The transpose of gather_rows for ascending rows: dx[rows[i]] = d_picked[i], every other row 0.
///
/// Errors    ContractError if rows are not strictly ascending
void scatter_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                  TensorView dx);

/// dx[rows[i]] += d_picked[i], for ascending rows; other rows stay.
///
/// Dtypes    d_picked like dx, or f32 for bf16
/// Errors    ContractError if rows are not strictly ascending
void add_to_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                 TensorView dx);

namespace cpu {
void add_rows(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum);
void add_bias(ExecContext& ctx, ConstTensorView bias, TensorView y);
void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias);
void gather_rows(ExecContext& ctx, ConstTensorView x, std::span<const std::int64_t> rows,
                 TensorView picked);
void scatter_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                  TensorView dx);
void add_to_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                 TensorView dx);
}  // namespace cpu
namespace cuda {
void add_rows(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum);
void add_bias(ExecContext& ctx, ConstTensorView bias, TensorView y);
void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias);
void gather_rows(ExecContext& ctx, ConstTensorView x, std::span<const std::int64_t> rows,
                 TensorView picked);
void scatter_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                  TensorView dx);
void add_to_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                 TensorView dx);
}  // namespace cuda

}  // namespace coppice
