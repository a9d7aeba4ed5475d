// f32 goes to oneDNN, which picks its code for the CPU at run time; f64 to Eigen, where exactness
// matters and speed does not.
#include <dnnl.h>
#include <omp.h>

#include <Eigen/Core>

#include "core/gemm.hpp"

namespace coppice::cpu {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> mapped(const double* data, std::int64_t rows,
                                                           std::int64_t cols, std::int64_t ld) {
  return {data, rows, cols, Eigen::OuterStride<>(ld)};
}

std::int64_t leading(std::int64_t ld, std::int64_t columns) {
  // A matrix of at most one row may carry any stride; libraries insist on one that could hold it.
  return std::max<std::int64_t>({ld, columns, 1});
}

void multiply(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
              float beta, float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // the library's answer for an empty sum is not specified
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
    }
    return;
  }
  const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
  const auto status =
      dnnl_sgemm(at ? 'T' : 'N', bt ? 'T' : 'N', m, n, k, alpha, a, leading(lda, at ? m : k), b,
                 leading(ldb, bt ? k : n), beta, c, leading(ldc, n));
  if (status != dnnl_success) {
    throw DeviceError(fmt::format("dnnl_sgemm failed with status {} for M={} N={} K={}.",
                                  static_cast<int>(status), m, n, k));
  }
}

void multiply(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
              double beta, double* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  Eigen::Map<RowMajor, 0, Eigen::OuterStride<>> out(c, m, n, Eigen::OuterStride<>(ldc));
  if (beta == 0.0) {
    out.setZero();
  } else if (beta != 1.0) {
    out *= beta;
  }
  if (k == 0) return;
  const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
  const auto am = mapped(a, at ? k : m, at ? m : k, lda);
  const auto bm = mapped(b, bt ? n : k, bt ? k : n, ldb);
  if (at && bt) {
    out.noalias() += alpha * (am.transpose() * bm.transpose());
  } else if (at) {
    out.noalias() += alpha * (am.transpose() * bm);
  } else if (bt) {
    out.noalias() += alpha * (am * bm.transpose());
  } else {
    out.noalias() += alpha * (am * bm);
  }
}

}  // namespace

void gemm(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView c,
          const GemmOptions& options) {
  const auto m = c.shape()[0], n = c.shape()[1];
  const auto k = a.shape()[options.a == Transpose::kYes ? 0 : 1];
  visit_float(c.dtype(), [&]<class T>(TypeTag<T>) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(ctx.threads);
    multiply(options.a, options.b, m, n, k, static_cast<T>(options.alpha), a.data<T>(),
             a.strides()[0], b.data<T>(), b.strides()[0], static_cast<T>(options.beta), c.data<T>(),
             c.strides()[0]);
    omp_set_num_threads(before);
  });
}

}  // namespace coppice::cpu
