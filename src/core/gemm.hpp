#pragma once
// Matrix multiplication, the work that everything else is arranged around.
#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice {

enum class Transpose { kNo, kYes };

struct GemmOptions {
  Transpose a = Transpose::kNo;
  Transpose b = Transpose::kNo;
  double alpha = 1.0;
  double beta = 0.0;
};

/// c = alpha op(a) op(b) + beta c, in row-major matrices.
///
/// Shapes    op(a) [M, K]   op(b) [K, N]   c [M, N]; any of M, N, K may be 0
/// Layout    rows may be apart (a view of some columns)
/// Dtypes    all f32 or all f64; f32 accumulation is the library's
/// Effects   overwrites c; with beta = 0 c is not read (NaN in it does not matter)
/// Errors    ContractError if shapes, dtypes or devices disagree
/// Repeats   bitwise, for the same thread count and kind of CPU
void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options = {});

namespace cpu {
void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options);
}
namespace cuda {
void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options);
}

}  // namespace coppice
