#include "core/gemm.hpp"

#include "core/build_config.hpp"

namespace coppice {

// What cuBLASLt's epilogue asks of a bias is written nowhere; its heuristics look at the address,
// and others have found 8 bytes wanting (Marian's prod.cpp takes 16 as we do).
bool gemm_takes_bias(ConstTensorView bias, ConstTensorView c) {
  return c.device().kind == DeviceKind::kCuda && bias.dtype() == c.dtype() &&
         reinterpret_cast<std::uintptr_t>(bias.bytes()) % 16 == 0;
}

void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options) {
  COPPICE_CHECK(a.shape().rank() == 2 && b.shape().rank() == 2 && c.shape().rank() == 2,
                "gemm takes matrices, not {} x {} -> {}", a.shape(), b.shape(), c.shape());
  const bool ta = options.a == Transpose::kYes, tb = options.b == Transpose::kYes;
  const auto m = a.shape()[ta ? 1 : 0], k = a.shape()[ta ? 0 : 1];
  COPPICE_CHECK(b.shape()[tb ? 1 : 0] == k, "gemm: inner extents differ in {} x {}", a.shape(),
                b.shape());
  COPPICE_CHECK(c.shape() == Shape({m, b.shape()[tb ? 0 : 1]}), "gemm: {} x {} into {}", a.shape(),
                b.shape(), c.shape());
  const bool widens = a.dtype() == DType::kBF16 && c.dtype() == DType::kF32;
  COPPICE_CHECK(a.dtype() == b.dtype() && (a.dtype() == c.dtype() || widens),
                "gemm: dtypes {}, {}, {}", name_of(a.dtype()), name_of(b.dtype()),
                name_of(c.dtype()));
  COPPICE_CHECK(
      a.device() == ctx.device() && b.device() == ctx.device() && c.device() == ctx.device(),
      "gemm on {}: matrices on {}, {}, {}", ctx.device().to_string(), a.device().to_string(),
      b.device().to_string(), c.device().to_string());
  if (options.bias) {
    COPPICE_CHECK(options.bias->shape() == Shape({c.shape()[1]}) && options.bias->is_contiguous() &&
                      gemm_takes_bias(*options.bias, c) && k > 0,
                  "gemm: a bias {} {} on {} for {} {}, K = {}", name_of(options.bias->dtype()),
                  options.bias->shape(), options.bias->device().to_string(), name_of(c.dtype()),
                  c.shape(), k);
  }
  const auto flops =
      2.0 * static_cast<double>(m) * static_cast<double>(c.shape()[1]) * static_cast<double>(k);
  const TraceScope scope(ctx.trace, "gemm", {.rows = m, .flops = flops});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::gemm(ctx, a, b, c, options);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::gemm(ctx, a, b, c, options);
      break;
  }
  throw_no_backend("gemm", ctx.device());
}

std::int64_t gemm_scratch_bytes(DType dtype) {
  if constexpr (build::kWithCuda) {
    if (dtype == DType::kBF16) return cuda::gemm_scratch_bytes();
  }
  return 0;
}

}  // namespace coppice
