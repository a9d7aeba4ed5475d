// cuBLASLt on the emulated device: what the library trusts its caller with is checked here (types,
// leading dimensions, alignment, extents, aliasing), then the product is computed on the host, in
// f32 and in one fixed order. How the library blocks and rounds inside is not imitated.
#include "core/cuda/cublaslt.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/convert.hpp"
#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/stream.hpp"

namespace coppice::cuda {

using emulated::Use;

class ProductLibrary {};

class ProductPlan {
 public:
  ProductShape shape;
};

namespace {

// Every plan asks for some, so that a caller without any, or with somebody else's, is noticed; and
// for as much as partial sums over k may take, so that plans of memory that forget it are too.
constexpr std::int64_t kLeastWorkspace = 1024, kMostWorkspace = 32 << 20;
constexpr std::int64_t kWorkspaceAlignment = 256, kBiasAlignment = 16;

struct Matrix {
  const char* name;
  DType dtype;
  std::int64_t rows, columns, leading;

  std::int64_t bytes() const { return ((columns - 1) * leading + rows) * size_of(dtype); }
};

Matrix a_of(const ProductShape& s) {
  return {"a", s.input, s.a_transposed ? s.k : s.m, s.a_transposed ? s.m : s.k, s.a_leading};
}
Matrix b_of(const ProductShape& s) {
  return {"b", s.input, s.b_transposed ? s.n : s.k, s.b_transposed ? s.k : s.n, s.b_leading};
}
Matrix bias_of(const ProductShape& s) { return {"bias", s.output, s.m, 1, s.m}; }
Matrix d_of(const ProductShape& s) { return {"d", s.output, s.m, s.n, s.d_leading}; }

void check_aligned(const char* name, const void* address, std::int64_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(alignment) == 0) {
    return;
  }
  throw DeviceError(fmt::format(
      "a product's {} lies at {}, which is not a multiple of {} (the algorithm was chosen for that "
      "alignment and would fault). Plan for the alignment that the operands have.",
      name, fmt::ptr(address), alignment));
}

template <class F>
void for_columns(const Matrix& matrix, const void* data, const F& f) {
  const auto size = size_of(matrix.dtype);
  for (std::int64_t column = 0; column < matrix.columns; ++column) {
    f(static_cast<const std::byte*>(data) + column * matrix.leading * size, matrix.rows * size);
  }
}

void check_contents(const Matrix& matrix, const void* data) {
  for_columns(matrix, data, [&](const void* column, std::int64_t bytes) {
    if (emulated::gpu().memory.holds_contents(column, bytes)) return;
    throw DeviceError(
        fmt::format("a product's {} holds bytes that nothing was written to (memory "
                    "starts with garbage). Write it first, or take fewer rows.",
                    matrix.name));
  });
}

void check_apart(const Matrix& matrix, const void* data, const Matrix& d, const void* out) {
  const auto* begin = static_cast<const std::byte*>(data);
  const auto* d_begin = static_cast<const std::byte*>(out);
  if (begin + matrix.bytes() <= d_begin || d_begin + d.bytes() <= begin) return;
  throw DeviceError(
      fmt::format("a product's {} and d share memory (the library reads {} while it "
                  "writes d). Give d memory of its own.",
                  matrix.name, matrix.name));
}

float element(DType dtype, const void* data, std::int64_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[index]
                              : to_f32(static_cast<const BF16*>(data)[index]);
}

// op(matrix) packed column by column as f32.
std::vector<float> packed(const Matrix& matrix, const void* data, bool transposed) {
  std::vector<float> out(static_cast<std::size_t>(matrix.rows * matrix.columns));
  for (std::int64_t column = 0; column < matrix.columns; ++column) {
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      const auto at = transposed ? row * matrix.columns + column : column * matrix.rows + row;
      out[static_cast<std::size_t>(at)] =
          element(matrix.dtype, data, column * matrix.leading + row);
    }
  }
  return out;
}

void compute(const ProductShape& shape, const ProductOperands& operands) {
  const auto a = packed(a_of(shape), operands.a, shape.a_transposed);
  const auto b = packed(b_of(shape), operands.b, shape.b_transposed);
  const auto alpha = static_cast<float>(operands.alpha), beta = static_cast<float>(operands.beta);
  const auto m = static_cast<std::size_t>(shape.m), k = static_cast<std::size_t>(shape.k);
  std::vector<float> sum(m);
  for (std::int64_t column = 0; column < shape.n; ++column) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::size_t l = 0; l < k; ++l) {
      const float factor = b[static_cast<std::size_t>(column) * k + l];
      for (std::size_t row = 0; row < m; ++row) sum[row] += a[l * m + row] * factor;
    }
    for (std::size_t row = 0; row < m; ++row) {
      const auto at = column * shape.d_leading + static_cast<std::int64_t>(row);
      const float before = beta == 0.0F ? 0.0F : beta * element(shape.output, operands.d, at);
      const float bias = shape.with_bias
                             ? element(shape.output, operands.bias, static_cast<std::int64_t>(row))
                             : 0.0F;
      const float value = alpha * sum[row] + before + bias;
      if (shape.output == DType::kF32) {
        static_cast<float*>(operands.d)[at] = value;
      } else {
        static_cast<BF16*>(operands.d)[at] = to_bf16(value);
      }
    }
  }
}

}  // namespace

void EndProductLibrary::operator()(ProductLibrary* library) const { delete library; }
void EndProductPlan::operator()(ProductPlan* plan) const { delete plan; }

std::unique_ptr<ProductLibrary, EndProductLibrary> begin_product_library(StreamState&) {
  return std::unique_ptr<ProductLibrary, EndProductLibrary>(new ProductLibrary);
}

ProductPlanPtr plan_product(ProductLibrary&, const ProductShape& shape) {
  const bool types = (shape.input == DType::kBF16 || shape.input == DType::kF32) &&
                     (shape.output == shape.input || shape.output == DType::kF32);
  if (!types || shape.m < 1 || shape.n < 1 || shape.k < 1) {
    throw DeviceError(fmt::format(
        "no algorithm for {} [{}, {}] x [{}, {}] into {} (products are bf16 or f32, into the same "
        "or "
        "into f32, and not empty). Convert before, or leave the product out.",
        name_of(shape.input), shape.m, shape.k, shape.k, shape.n, name_of(shape.output)));
  }
  for (const Matrix& matrix : {a_of(shape), b_of(shape), d_of(shape)}) {
    if (matrix.leading >= matrix.rows) continue;
    throw DeviceError(
        fmt::format("a product's {} has {} rows and a leading dimension of {} (columns would "
                    "overlap). Give the "
                    "distance of two columns.",
                    matrix.name, matrix.rows, matrix.leading));
  }
  return ProductPlanPtr(new ProductPlan{shape});
}

std::int64_t most_workspace_bytes() { return kMostWorkspace; }
std::int64_t workspace_bytes(const ProductPlan& plan) {
  return std::clamp(plan.shape.m * plan.shape.n * size_of(DType::kF32), kLeastWorkspace,
                    kMostWorkspace);
}

void multiply(StreamState& stream, ProductLibrary&, const ProductPlan& plan,
              const ProductOperands& operands) {
  emulated::enqueue(
      stream, "a product", [shape = plan.shape, workspace = workspace_bytes(plan), operands] {
        check_aligned("a", operands.a, shape.a_alignment);
        check_aligned("b", operands.b, shape.b_alignment);
        check_aligned("d", operands.d, shape.d_alignment);
        check_aligned("workspace", operands.workspace, kWorkspaceAlignment);
        const Matrix a = a_of(shape), b = b_of(shape), d = d_of(shape);
        emulated::check_device_range("a product's a", operands.a, a.bytes(), Use::kRead);
        emulated::check_device_range("a product's b", operands.b, b.bytes(), Use::kRead);
        emulated::check_device_range("a product's d", operands.d, d.bytes(), Use::kWrite);
        emulated::check_device_range("a product's workspace", operands.workspace, workspace,
                                     Use::kWrite);
        check_contents(a, operands.a);
        check_contents(b, operands.b);
        if (operands.beta != 0) check_contents(d, operands.d);
        if (shape.with_bias != (operands.bias != nullptr)) {
          throw DeviceError(fmt::format(
              "a product {} a bias was planned {} one (the library would read an address "
              "of nothing, or add nothing). Plan for what is multiplied.",
              operands.bias != nullptr ? "with" : "without", shape.with_bias ? "with" : "without"));
        }
        if (shape.with_bias) {
          const Matrix bias = bias_of(shape);
          check_aligned("bias", operands.bias, kBiasAlignment);
          emulated::check_device_range("a product's bias", operands.bias, bias.bytes(), Use::kRead);
          check_contents(bias, operands.bias);
          check_apart(bias, operands.bias, d, operands.d);
        }
        check_apart(a, operands.a, d, operands.d);
        check_apart(b, operands.b, d, operands.d);
        // Whatever else lies there is lost, as it may be on a GPU.
        std::memset(operands.workspace, 0xff, static_cast<std::size_t>(workspace));
        emulated::gpu().memory.note_contents(operands.workspace, workspace, false);
        compute(shape, operands);
        for_columns(d, operands.d, [](const void* column, std::int64_t bytes) {
          emulated::gpu().memory.note_contents(column, bytes);
        });
      });
}

}  // namespace coppice::cuda
