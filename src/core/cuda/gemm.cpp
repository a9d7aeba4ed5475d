// Row-major matrices handed to a column-major library: a row-major matrix is the column-major one
// of its transpose, so C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T, with nothing moved.
#include "core/gemm.hpp"

#include <map>

#include "core/cuda/cublaslt.hpp"

namespace coppice::cuda {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 256;
// Row counts differ from micro-batch to micro-batch: a long run must not keep every one it has
// seen.
constexpr std::size_t kMostPlans = 4096;

// The library's handle and the algorithms chosen so far, for one stream.
class Products : public Attachment {
 public:
  explicit Products(StreamState& stream) : library_(begin_product_library(stream)) {}

  ProductLibrary& library() { return *library_; }
  const ProductPlan& plan(const ProductShape& shape) {
    if (const auto found = plans_.find(shape); found != plans_.end()) return *found->second;
    if (plans_.size() == kMostPlans) plans_.clear();
    return *plans_.emplace(shape, plan_product(*library_, shape)).first->second;
  }

 private:
  std::unique_ptr<ProductLibrary, EndProductLibrary> library_;
  std::map<ProductShape, ProductPlanPtr> plans_;
};

std::int64_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | kWorkspaceAlignment;
  return static_cast<std::int64_t>(bits & -bits);
}

std::int64_t leading(ConstTensorView matrix) {
  // A matrix of at most one row may carry any stride; the library insists on one that could hold
  // it.
  return std::max(matrix.strides()[0], matrix.shape()[1]);
}

// Room for a workspace at the next multiple of its alignment.
Shape workspace_words(std::int64_t bytes) {
  return {(bytes + kWorkspaceAlignment) / size_of(DType::kI64)};
}

// c = beta c, for a sum of no products.
void scale(ExecContext& ctx, TensorView c, double beta) {
  if (beta == 1.0) return;
  COPPICE_CHECK(beta == 0.0, "gemm on a CUDA device: K = 0 with beta = {}", beta);
  fill(ctx.stream.state(), c.bytes(), 0, c.shape()[1] * size_of(c.dtype()), c.shape()[0],
       c.strides()[0] * size_of(c.dtype()));
}

}  // namespace

std::int64_t gemm_scratch_bytes() {
  return Arena::leased_bytes(DType::kI64, workspace_words(most_workspace_bytes()));
}

void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options) {
  const bool ta = options.a == Transpose::kYes, tb = options.b == Transpose::kYes;
  const auto rows = c.shape()[0], columns = c.shape()[1], inner = a.shape()[ta ? 0 : 1];
  if (rows == 0 || columns == 0) return;
  if (inner == 0) return scale(ctx, c, options.beta);

  StreamState& stream = ctx.stream.state();
  if (!stream.products) stream.products = std::make_unique<Products>(stream);
  auto& products = static_cast<Products&>(*stream.products);
  // The library's a is our b and the other way round.
  const auto& plan = products.plan({.m = columns,
                                    .n = rows,
                                    .k = inner,
                                    .a_leading = leading(b),
                                    .b_leading = leading(a),
                                    .d_leading = leading(c),
                                    .a_transposed = tb,
                                    .b_transposed = ta,
                                    .with_bias = options.bias.has_value(),
                                    .input = a.dtype(),
                                    .output = c.dtype(),
                                    .a_alignment = alignment_of(b.bytes()),
                                    .b_alignment = alignment_of(a.bytes()),
                                    .d_alignment = alignment_of(c.bytes())});
  ScratchScope scratch(ctx.scratch);
  std::byte* workspace = nullptr;
  if (const auto bytes = workspace_bytes(plan); bytes > 0) {
    const auto leased = reinterpret_cast<std::uintptr_t>(
        scratch.lease(DType::kI64, workspace_words(bytes)).bytes());
    workspace = reinterpret_cast<std::byte*>((leased + kWorkspaceAlignment - 1) &
                                             ~std::uintptr_t{kWorkspaceAlignment - 1});
  }
  multiply(stream, products.library(), plan,
           {.a = b.bytes(),
            .b = a.bytes(),
            .d = c.bytes(),
            .alpha = options.alpha,
            .beta = options.beta,
            .bias = options.bias ? options.bias->bytes() : nullptr,
            .workspace = workspace});
}

}  // namespace coppice::cuda
