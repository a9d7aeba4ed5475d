#pragma once
// The feed-forward network of a block: one fused matrix makes gate and up, SwiGLU joins them, a
// second matrix leads back. The residual addition and the norm before it belong to the block.
#include "core/arena.hpp"
#include "layers/column_parallel_linear.hpp"
#include "layers/row_parallel_linear.hpp"

namespace coppice {

class Mlp {
 public:
  /// Kept from forward to backward. T tokens, F = intermediate_size / tensor-parallel ranks.
  struct Activations {
    Tensor gate_up;  // [T, 2F]  before SwiGLU
    Tensor hidden;   // [T, F]   after SwiGLU
  };

  /// `name` is the module's Hugging Face name, "model.layers.0.mlp".
  Mlp(const ParallelContext& parallel, const ParameterStorage& storage, const std::string& name,
      std::int64_t hidden_size, std::int64_t intermediate_size);

  Activations lease_activations(Arena& arena, std::int64_t tokens) const;
  std::int64_t activation_bytes(std::int64_t tokens) const;
  /// What forward or backward leases from ctx.scratch for T rows.
  std::int64_t scratch_bytes(std::int64_t tokens) const;

  /// y = down(silu(gate(x)) up(x)); x, y [T, hidden_size], or this rank's rows of it
  void forward(ExecContext& ctx, ConstTensorView x, Activations& acts, TensorView y) const;
  /// Forward up to the input of the last matrix: what backward needs when nothing was kept.
  void recompute(ExecContext& ctx, ConstTensorView x, Activations& acts) const;
  /// Overwrites dx, which may be x itself. The activations' memory is used for their gradients.
  void backward(ExecContext& ctx, ConstTensorView x, Activations&& acts, ConstTensorView dy,
                TensorView dx);

  void collect(std::vector<Parameter*>& parameters);
  ColumnParallelLinear& gate_up() { return gate_up_; }
  RowParallelLinear& down() { return down_; }

 private:
  DType dtype_;
  std::int64_t intermediate_size_;  // of this rank
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
};

}  // namespace coppice
