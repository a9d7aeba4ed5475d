#pragma once
// cuBLASLt as one plan and one call. It exists twice: cublaslt.cpp calls the library,
// emulated/cublaslt.cpp checks everything that the library would trust and computes on the host.
// Matrices are the library's, column-major; turning ours into them is left to gemm.cpp.
#include <compare>
#include <cstdint>
#include <memory>

#include "core/cuda/runtime.hpp"
#include "core/dtype.hpp"

namespace coppice::cuda {

/// d = alpha op(a) op(b) + beta d + bias, with everything that an algorithm is chosen for.
///
/// Shapes    op(a) [m, k]   op(b) [k, n]   d [m, n], none of them empty   bias [m], for each column
/// Layout    column-major; a leading dimension is the distance of two columns, in elements
/// Dtypes    a and b alike, bf16 or f32; d like them, or f32; bias like d; accumulation f32
struct ProductShape {
  std::int64_t m, n, k;
  std::int64_t a_leading, b_leading, d_leading;
  bool a_transposed, b_transposed;
  bool with_bias = false;
  DType input, output;
  /// Powers of two that divide the addresses; algorithms are chosen by them.
  std::int64_t a_alignment, b_alignment, d_alignment;

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductOperands {
  const void* a;
  const void* b;
  void* d;
  double alpha, beta;
  const void* bias = nullptr;  ///< aligned to 16 bytes; null where the shape has none
  void* workspace;             ///< aligned to 256 bytes, of the plan's size
};

/// The library's handle: one per stream.
class ProductLibrary;
struct EndProductLibrary {
  void operator()(ProductLibrary* library) const;
};
std::unique_ptr<ProductLibrary, EndProductLibrary> begin_product_library(StreamState& stream);

/// The algorithm for one shape.
class ProductPlan;
struct EndProductPlan {
  void operator()(ProductPlan* plan) const;
};
using ProductPlanPtr = std::unique_ptr<ProductPlan, EndProductPlan>;
/// Errors    DeviceError where the library has no algorithm
ProductPlanPtr plan_product(ProductLibrary& library, const ProductShape& shape);
std::int64_t workspace_bytes(const ProductPlan& plan);
/// No plan asks for more.
std::int64_t most_workspace_bytes();

/// Enqueues the product. With beta = 0 d is not read.
void multiply(StreamState& stream, ProductLibrary& library, const ProductPlan& plan,
              const ProductOperands& operands);

}  // namespace coppice::cuda
