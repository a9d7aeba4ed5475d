#pragma once
// Rotary position embedding: q and k rows are turned, in place, by angles that grow with the row's
// position. The angles of a run are a table made once; which position a row has comes from the
// packed batch, never from the row's place in it.
#include <span>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"
#include "layers/rope_config.hpp"

namespace coppice {

/// Cosines and sines of positions [0, positions), times the attention factor.
///
/// Shapes    cos, sin [positions, D/2]
/// Dtypes    angles, cosines and products in double, rounded once to `dtype` (f32 for bf16)
class RopeTable {
 public:
  RopeTable(Memory& memory, DType dtype, const RopeConfig& config, std::int64_t head_dim,
            std::int64_t positions);

  ConstTensorView cos() const { return cos_; }
  ConstTensorView sin() const { return sin_; }
  std::int64_t positions() const { return cos_.shape()[0]; }
  static std::int64_t bytes(DType dtype, std::int64_t head_dim, std::int64_t positions) {
    return positions * head_dim * size_of(accumulation_of(dtype));
  }

 private:
  Tensor cos_, sin_;
};

/// Turns x in place: with i < D/2 and angle a = position x frequency_i,
/// (x_i, x_{i + D/2}) becomes (x_i cos a - x_{i+D/2} sin a, x_{i+D/2} cos a + x_i sin a).
///
/// Shapes    x [T, H, D]   positions [T]
/// Layout    rows and heads may be apart (the q and k columns of a fused matrix)
/// Dtypes    x f32 or f64, like the table; on CUDA bf16, turned in f32
/// Errors    ContractError if shapes or dtypes disagree, or a position is outside the table
/// Repeats   bitwise, for any thread count
/// Source    Su et al., arXiv:2104.09864, in the half-split order of Hugging Face checkpoints
/// Oracle    tests/layers/rope_test.cpp
void rope_forward(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
                  TensorView x);

/// The transpose of forward, in place on the gradient: turned back, times the attention factor.
void rope_backward(ExecContext& ctx, const RopeTable& table,
                   std::span<const std::int32_t> positions, TensorView dx);

enum class RopeDirection { kForward, kBackward };

namespace cpu {
void rope(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
          TensorView x, RopeDirection direction);
}
namespace cuda {
void rope(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
          TensorView x, RopeDirection direction);
}

}  // namespace coppice
