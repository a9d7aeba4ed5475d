// cuBLASLt itself.
#include "core/cuda/cublaslt.hpp"

#include <cublasLt.h>

#include "core/cuda/launch_support.hpp"
#include "core/error.hpp"

namespace coppice::cuda {
namespace {

// What the library may take to sum over parts of k; NVIDIA's advice for Hopper.
constexpr std::uint64_t kWorkspaceLimit = 32 << 20;
constexpr std::uintptr_t kBiasAlignment = 16;

void check(cublasStatus_t status, const char* action) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format(
      "cuBLASLt failed while {}: {}, {} (a kernel enqueued before may be why). Run again with "
      "CUDA_LAUNCH_BLOCKING=1; CUBLASLT_LOG_LEVEL=2 makes the library say what it refuses.",
      action, cublasLtGetStatusName(status), cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(DType dtype) {
  COPPICE_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "a product of {} on a CUDA device",
                name_of(dtype));
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The library's objects, which end with their scope.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) kDestroy(handle);
  }
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

void make(Layout& layout, DType dtype, std::int64_t rows, std::int64_t columns,
          std::int64_t leading) {
  check(cublasLtMatrixLayoutCreate(&layout.handle, type_of(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), leading),
        "describing a matrix");
}

template <class T>
void set(Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation.handle, attribute, &value, sizeof(value)),
        "describing a product");
}
template <class T>
void set(Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof(value)),
        "saying which algorithms will do");
}

void set_bias(const Operation& operation, const void* bias) {
  check(cublasLtMatmulDescSetAttribute(operation.handle, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                       sizeof(bias)),
        "handing over a bias");
}

}  // namespace

class ProductLibrary {
 public:
  Owned<cublasLtHandle_t, cublasLtDestroy> lt;
};

class ProductPlan {
 public:
  Operation operation;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

void EndProductLibrary::operator()(ProductLibrary* library) const { delete library; }
void EndProductPlan::operator()(ProductPlan* plan) const { delete plan; }

std::unique_ptr<ProductLibrary, EndProductLibrary> begin_product_library(StreamState& stream) {
  native_stream(stream);  // a handle is one of the current device
  std::unique_ptr<ProductLibrary, EndProductLibrary> library(new ProductLibrary);
  check(cublasLtCreate(&library->lt.handle), "starting");
  return library;
}

ProductPlanPtr plan_product(ProductLibrary& library, const ProductShape& shape) {
  ProductPlanPtr plan(new ProductPlan);
  check(cublasLtMatmulDescCreate(&plan->operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
  set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, shape.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, shape.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (shape.with_bias) {
    set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
        static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    // The choice of an algorithm takes no more from the address than its alignment.
    set_bias(plan->operation, reinterpret_cast<const void*>(kBiasAlignment));
  }
  make(plan->a, shape.input, shape.a_transposed ? shape.k : shape.m,
       shape.a_transposed ? shape.m : shape.k, shape.a_leading);
  make(plan->b, shape.input, shape.b_transposed ? shape.n : shape.k,
       shape.b_transposed ? shape.k : shape.n, shape.b_leading);
  make(plan->d, shape.output, shape.m, shape.n, shape.d_leading);

  Preference preference;
  check(cublasLtMatmulPreferenceCreate(&preference.handle), "saying which algorithms will do");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceLimit);
  // Parts of k are summed in f32: sums in bf16 would lose what f32 accumulation is for.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      static_cast<std::uint32_t>(shape.a_alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      static_cast<std::uint32_t>(shape.b_alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      static_cast<std::uint32_t>(shape.d_alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      static_cast<std::uint32_t>(shape.d_alignment));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(
      library.lt.handle, plan->operation.handle, plan->a.handle, plan->b.handle, plan->d.handle,
      plan->d.handle, preference.handle, 1, &best, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0 || best.state != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(
        fmt::format("cuBLASLt has no algorithm for {} [{}, {}] x [{}, {}] into {} ({}). Check that "
                    "the driver is "
                    "as new as the toolkit.",
                    name_of(shape.input), shape.m, shape.k, shape.k, shape.n, name_of(shape.output),
                    cublasLtGetStatusName(status)));
  }
  plan->algorithm = best.algo;
  plan->workspace_bytes = best.workspaceSize;
  return plan;
}

std::int64_t most_workspace_bytes() { return kWorkspaceLimit; }
std::int64_t workspace_bytes(const ProductPlan& plan) {
  return static_cast<std::int64_t>(plan.workspace_bytes);
}

void multiply(StreamState& stream, ProductLibrary& library, const ProductPlan& plan,
              const ProductOperands& operands) {
  const auto alpha = static_cast<float>(operands.alpha), beta = static_cast<float>(operands.beta);
  if (operands.bias != nullptr) set_bias(plan.operation, operands.bias);
  check(cublasLtMatmul(library.lt.handle, plan.operation.handle, &alpha, operands.a, plan.a.handle,
                       operands.b, plan.b.handle, &beta, operands.d, plan.d.handle, operands.d,
                       plan.d.handle, &plan.algorithm, operands.workspace, plan.workspace_bytes,
                       static_cast<cudaStream_t>(native_stream(stream))),
        "multiplying");
}

}  // namespace coppice::cuda
