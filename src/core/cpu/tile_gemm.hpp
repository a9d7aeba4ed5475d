#pragma once
// The matrix multiplication of one thread, for kernels that tile their work themselves. It is also
// the only place that knows which library multiplies on the CPU.
#include <cstdint>

#include "core/gemm.hpp"

namespace coppice::cpu {

/// c[m, n] = alpha op(a) op(b) + beta c; lda, ldb, ldc are the row strides of the matrices as
/// stored. Inside parallel_for it runs in the calling thread; outside it may use OpenMP's threads.
///
/// Repeats   bitwise inside parallel_for, whatever the thread count
void tile_gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
               float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
               float beta, float* c, std::int64_t ldc);
void tile_gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
               double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
               double beta, double* c, std::int64_t ldc);

}  // namespace coppice::cpu
