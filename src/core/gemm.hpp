#pragma once
// Matrix multiplication, the work that everything else is arranged around.
#include <optional>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice {

enum class Transpose { kNo, kYes };

struct GemmOptions {
  Transpose a = Transpose::kNo;
  Transpose b = Transpose::kNo;
  double alpha = 1.0;
  double beta = 0.0;
  /// [N], added to each row before c is rounded; only where gemm_takes_bias says so.
  std::optional<ConstTensorView> bias = std::nullopt;
};

/// Whether products into c add `bias` on their way out. Otherwise it takes a second pass.
bool gemm_takes_bias(ConstTensorView bias, ConstTensorView c);

/// c = alpha op(a) op(b) + beta c + bias, in row-major matrices.
///
/// Shapes    op(a) [M, K]   op(b) [K, N]   c [M, N]; any of M, N, K may be 0
/// Layout    rows may be apart (a view of some columns)
/// Dtypes    CPU: all f32 or all f64. CUDA: all bf16, all f32, or bf16 into f32. Accumulation
///           is the library's, in f32 (f64)
/// Memory    CUDA: at most 32 MiB of scratch
/// Effects   overwrites c; with beta = 0 c is not read (NaN in it does not matter)
/// Errors    ContractError if shapes, dtypes or devices disagree, or a bias is not taken, or (CUDA)
///           K = 0 with a bias or with beta neither 0 nor 1
/// Repeats   bitwise, for the same thread count and kind of CPU
void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options = {});

/// The most that one product of such operands leases from ctx.scratch: on CUDA for bf16, which the
/// CPU does not multiply.
std::int64_t gemm_scratch_bytes(DType dtype);

namespace cpu {
void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options);
}
namespace cuda {
std::int64_t gemm_scratch_bytes();
void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options);
}

}  // namespace coppice
