#pragma once
// Root-mean-square normalisation, of whole rows (the norms of a block) or of heads (the q and k
// norms of Qwen3), with the residual additions around it fused in. It keeps nothing: backward is
// handed x and rstd.
#include <optional>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"
#include "parallel/parallel_context.hpp"
#include "parallel/parameter.hpp"

namespace coppice {

/// y = x rstd gamma, with rstd = 1 / sqrt(mean(x^2) + epsilon) of each vector.
///
/// Shapes    x, y [T, N] or [T, H, N]   gamma [N]   rstd [T] or [T, H]
/// Layout    rows and heads may be apart (columns of a wider matrix); y may be x itself
/// Dtypes    all f32 or all f64; on CUDA bf16 with rstd f32, computed in f32
/// Effects   overwrites y and rstd
/// Errors    ContractError if shapes, dtypes or devices disagree
/// Repeats   bitwise, for any thread count; a row depends on no other row
/// Source    Zhang and Sennrich, arXiv:1910.07467
/// Oracle    tests/layers/rms_norm_test.cpp, on CUDA tests/layers/rms_norm_cuda_test.cpp
void rms_norm_forward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma, double epsilon,
                      TensorView y, TensorView rstd);

/// sum = x + delta; y = rms_norm(sum). One pass over memory for the residual stream and its norm.
///
/// Shapes    x, delta, sum, y [T, N]; sum may be x or delta itself
void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x, ConstTensorView delta,
                          ConstTensorView gamma, double epsilon, TensorView sum, TensorView y,
                          TensorView rstd);

/// dx = residual_grad + d(x rstd gamma)/dx dy;  dgamma += sum over vectors of dy x rstd.
///
/// Shapes    dy, dx, residual_grad like x; dx may be dy or residual_grad itself
/// Dtypes    dgamma like gamma; f32 for bf16
/// Memory    scratch as told by rms_norm_scratch_bytes()
/// Effects   overwrites dx; adds to dgamma, where there is one
/// Repeats   bitwise, for any thread count: dgamma sums fixed blocks of rows in order
void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView rstd, ConstTensorView dy,
                       std::optional<ConstTensorView> residual_grad, TensorView dx,
                       std::optional<TensorView> dgamma);

/// What rms_norm_backward leases for x [tokens, (heads,) width].
std::int64_t rms_norm_scratch_bytes(DType dtype, std::int64_t tokens, std::int64_t width);

/// The op with its weight.
class RmsNorm {
 public:
  /// `name` is the norm's name in the model, "model.layers.0.input_layernorm". Each tensor-parallel
  /// rank holds the whole weight; `reduction` says whether it sees only a part of its gradient.
  RmsNorm(const ParallelContext& parallel, const ParameterStorage& storage, const std::string& name,
          std::int64_t width, double epsilon, ReductionGroup reduction);

  void forward(ExecContext& ctx, ConstTensorView x, TensorView y, TensorView rstd) const;
  /// sum = x + delta, y = norm(sum)
  void forward_sum(ExecContext& ctx, ConstTensorView x, ConstTensorView delta, TensorView sum,
                   TensorView y, TensorView rstd) const;
  void backward(ExecContext& ctx, ConstTensorView x, ConstTensorView rstd, ConstTensorView dy,
                std::optional<ConstTensorView> residual_grad, TensorView dx);

  void collect(std::vector<Parameter*>& parameters) { parameters.push_back(&weight_); }
  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }

 private:
  Parameter weight_;
  double epsilon_;
};

namespace cpu {
void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x, std::optional<ConstTensorView> delta,
                          ConstTensorView gamma, double epsilon, std::optional<TensorView> sum,
                          TensorView y, TensorView rstd);
void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView rstd, ConstTensorView dy,
                       std::optional<ConstTensorView> residual_grad, TensorView dx,
                       std::optional<TensorView> dgamma);
}  // namespace cpu
namespace cuda {
void add_rms_norm_forward(ExecContext& ctx, ConstTensorView x, std::optional<ConstTensorView> delta,
                          ConstTensorView gamma, double epsilon, std::optional<TensorView> sum,
                          TensorView y, TensorView rstd);
void rms_norm_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView rstd, ConstTensorView dy,
                       std::optional<ConstTensorView> residual_grad, TensorView dx,
                       std::optional<TensorView> dgamma);
}  // namespace cuda

}  // namespace coppice
