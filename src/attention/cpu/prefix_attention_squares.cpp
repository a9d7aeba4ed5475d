// Products with the seen half of a causal square, which a matrix multiplication could only make
// with zeros in the other half: and zero times garbage is garbage. Highway compiles them once per
// kind of CPU and chooses at run time.
#include "attention/cpu/prefix_attention_kernels.hpp"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/prefix_attention_squares.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include "attention/cpu/vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu {
namespace HWY_NAMESPACE {

/// Adds sum_{j < n} w[h][j] b[j] to kHeads rows of `out`, kVectors vectors wide.
template <class T, int kHeads, int kVectors>
HWY_INLINE void add_products(const T* w, Index w_stride, const T* b, Index b_stride, Index n,
                             T* out, Index out_stride) {
  const Tag<T> d;
  const Index step = lanes<T>();
  Vector<T> acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::LoadU(d, out + h * out_stride + v * step);
  }
  for (Index j = 0; j < n; ++j) {
    Vector<T> row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + j * b_stride + v * step);
    for (int h = 0; h < kHeads; ++h) {
      const auto factor = hn::Set(d, w[h * w_stride + j]);
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(factor, row[v], acc[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[h][v], d, out + h * out_stride + v * step);
  }
}

/// Vectors taken side by side: what fits the registers, of which machines with 64-byte vectors have
/// 32 and others 16.
inline constexpr int kWide = HWY_MAX_BYTES == 64 ? 4 : 2;

/// The same for any number of columns of `out`.
template <class T, int kHeads>
void add_row_products(const T* w, Index w_stride, const T* b, Index b_stride, Index n, T* out,
                      Index out_stride, Index dim) {
  const Index step = lanes<T>();
  Index c = 0;
  for (; c + kWide * step <= dim; c += kWide * step) {
    add_products<T, kHeads, kWide>(w, w_stride, b + c, b_stride, n, out + c, out_stride);
  }
  for (; c + step <= dim; c += step) {
    add_products<T, kHeads, 1>(w, w_stride, b + c, b_stride, n, out + c, out_stride);
  }
  for (; c < dim; ++c) {
    for (int h = 0; h < kHeads; ++h) {
      for (Index j = 0; j < n; ++j) {
        out[h * out_stride + c] += w[h * w_stride + j] * b[j * b_stride + c];
      }
    }
  }
}

/// kRows stacked rows from `first` on: what the first of them sees together, the rest one by one.
template <class T, int kRows>
void square_rows(const TileShape& tile, Index first, const T* w, const T* b, Index b_stride,
                 Index dim, T* out) {
  const Index common = first / tile.heads + 1;
  w += first * tile.stride;
  out += first * dim;
  add_row_products<T, kRows>(w, tile.stride, b, b_stride, common, out, dim, dim);
  for (Index r = 1; r < kRows; ++r) {
    const Index more = (first + r) / tile.heads + 1 - common;
    if (more == 0) continue;
    add_row_products<T, 1>(w + r * tile.stride + common, tile.stride, b + common * b_stride,
                           b_stride, more, out + r * dim, dim, dim);
  }
}

template <class T>
void square(const TileShape& tile, const T* w, const T* b, Index b_stride, Index dim, T* out) {
  if (tile.square == 0) return;
  Index r = 0;
  if (tile.heads % 3 == 0) {  // such groups have no rest
    for (; r + 3 <= tile.rows; r += 3) square_rows<T, 3>(tile, r, w, b, b_stride, dim, out);
  }
  for (; r + 4 <= tile.rows; r += 4) square_rows<T, 4>(tile, r, w, b, b_stride, dim, out);
  for (; r < tile.rows; ++r) square_rows<T, 1>(tile, r, w, b, b_stride, dim, out);
}

/// Adds sum over stacked rows r in [first, rows) of w[r][k] a[r] to kKeys rows of `out`.
template <class T, int kKeys, int kVectors>
HWY_INLINE void add_transposed(const T* w, Index w_stride, const T* a, Index first, Index rows,
                               Index dim, T* out) {
  const Tag<T> d;
  const Index step = lanes<T>();
  Vector<T> acc[kKeys][kVectors];
  for (int k = 0; k < kKeys; ++k) {
    for (int v = 0; v < kVectors; ++v) acc[k][v] = hn::LoadU(d, out + k * dim + v * step);
  }
  for (Index r = first; r < rows; ++r) {
    Vector<T> row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, a + r * dim + v * step);
    for (int k = 0; k < kKeys; ++k) {
      const auto factor = hn::Set(d, w[r * w_stride + k]);
      for (int v = 0; v < kVectors; ++v) acc[k][v] = hn::MulAdd(factor, row[v], acc[k][v]);
    }
  }
  for (int k = 0; k < kKeys; ++k) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[k][v], d, out + k * dim + v * step);
  }
}

template <class T, int kKeys>
void add_transposed_rows(const T* w, Index w_stride, const T* a, Index first, Index rows, Index dim,
                         T* out) {
  const Index step = lanes<T>();
  Index c = 0;
  for (; c + kWide * step <= dim; c += kWide * step) {
    add_transposed<T, kKeys, kWide>(w, w_stride, a + c, first, rows, dim, out + c);
  }
  for (; c + step <= dim; c += step) {
    add_transposed<T, kKeys, 1>(w, w_stride, a + c, first, rows, dim, out + c);
  }
  for (; c < dim; ++c) {
    for (Index r = first; r < rows; ++r) {
      for (int k = 0; k < kKeys; ++k) out[k * dim + c] += w[r * w_stride + k] * a[r * dim + c];
    }
  }
}

template <class T>
void square_transposed(const TileShape& tile, const T* w, const T* a, Index dim, T* out) {
  constexpr int kKeys = 4;
  Index j = 0;
  for (; j + kKeys <= tile.square; j += kKeys) {
    // The corner row by row, then all rows that see the four keys.
    for (int k = 0; k + 1 < kKeys; ++k) {
      add_transposed_rows<T, 1>(w + j + k, tile.stride, a, (j + k) * tile.heads,
                                (j + kKeys - 1) * tile.heads, dim, out + (j + k) * dim);
    }
    add_transposed_rows<T, kKeys>(w + j, tile.stride, a, (j + kKeys - 1) * tile.heads, tile.rows,
                                  dim, out + j * dim);
  }
  for (; j < tile.square; ++j) {
    add_transposed_rows<T, 1>(w + j, tile.stride, a, j * tile.heads, tile.rows, dim, out + j * dim);
  }
}

// HWY_EXPORT takes plain functions: one name per type.
#define COPPICE_KERNELS(T, Suffix)                                                               \
  void Square##Suffix(const TileShape& tile, const T* w, const T* b, std::int64_t b_stride,      \
                      std::int64_t dim, T* out) {                                                \
    square<T>(tile, w, b, b_stride, dim, out);                                                   \
  }                                                                                              \
  void SquareTransposed##Suffix(const TileShape& tile, const T* w, const T* a, std::int64_t dim, \
                                T* out) {                                                        \
    square_transposed<T>(tile, w, a, dim, out);                                                  \
  }
COPPICE_KERNELS(float, F32)
COPPICE_KERNELS(double, F64)
#undef COPPICE_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace coppice::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {

#define COPPICE_DISPATCH(T, Suffix)                                                                \
  HWY_EXPORT(Square##Suffix);                                                                      \
  void multiply_square(const TileShape& tile, const T* w, const T* b, std::int64_t b_stride,       \
                       std::int64_t dim, T* out) {                                                 \
    HWY_DYNAMIC_DISPATCH(Square##Suffix)(tile, w, b, b_stride, dim, out);                          \
  }                                                                                                \
  HWY_EXPORT(SquareTransposed##Suffix);                                                            \
  void multiply_square_transposed(const TileShape& tile, const T* w, const T* a, std::int64_t dim, \
                                  T* out) {                                                        \
    HWY_DYNAMIC_DISPATCH(SquareTransposed##Suffix)(tile, w, a, dim, out);                          \
  }
COPPICE_DISPATCH(float, F32)
COPPICE_DISPATCH(double, F64)
#undef COPPICE_DISPATCH

}  // namespace coppice::cpu
#endif  // HWY_ONCE
