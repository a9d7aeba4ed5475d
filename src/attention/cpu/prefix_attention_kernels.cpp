// Compiled once per kind of CPU by Highway, and chosen at run time. Vectors are kept in arrays,
// which sizeless vector types (SVE, RVV) do not allow: those targets are left out.
#include "attention/cpu/prefix_attention_kernels.hpp"

#include <algorithm>
#include <limits>

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/prefix_attention_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Index = std::int64_t;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;

template <class T>
Index lanes() {
  return static_cast<Index>(hn::Lanes(Tag<T>()));
}

/// ln(2)^i / i!, the coefficients of 2^r.
template <int kCount>
struct PowerSeries {
  constexpr PowerSeries() {
    double term = 1;
    for (int i = 0; i < kCount; ++i) {
      coefficient[i] = term;
      term *= 0.693147180559945309417 / (i + 1);
    }
  }
  double coefficient[kCount] = {};
};

/// 2^x to about an ulp for x <= 127 (1023 in double); 0 where x is so low that products with it
/// could be subnormal, which are slow; NaN stays. x = n + r with |r| <= 1/2; the next term of
/// either series is below a sixth of an ulp.
template <class T>
HWY_INLINE Vector<T> power_of_two(Vector<T> x) {
  const Tag<T> d;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kTerms = kSingle ? 8 : 14;
  constexpr PowerSeries<kTerms> kSeries;
  const hn::RebindToUnsigned<Tag<T>> du;
  // Adding 1.5 * 2^mantissa rounds to an integer; the exponent's bias sits there already.
  const auto magic =
      hn::Set(d, static_cast<T>(kSingle ? 12582912.0 + 127 : 6755399441055744.0 + 1023));
  const auto shifted = hn::Add(x, magic);
  const auto r = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::Set(d, static_cast<T>(kSeries.coefficient[kTerms - 1]));
  for (int i = kTerms - 2; i >= 0; --i) {
    p = hn::MulAdd(p, r, hn::Set(d, static_cast<T>(kSeries.coefficient[i])));
  }
  const auto power = hn::BitCast(d, hn::ShiftLeft < kSingle ? 23 : 52 > (hn::BitCast(du, shifted)));
  const auto underflow = hn::Lt(x, hn::Set(d, static_cast<T>(kSingle ? -100.0 : -980.0)));
  return hn::IfThenZeroElse(underflow, hn::Mul(p, power));
}

template <class T>
Index seen(const TileShape& tile, Index row) {
  return tile.square == 0 ? tile.full : tile.full + row / tile.heads + 1;
}

template <class T>
T row_max(const T* x, Index n) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto least = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto m0 = least, m1 = least, m2 = least, m3 = least;
  Index i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + step));
    m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * step));
    m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * step));
  }
  for (; i + step <= n; i += step) m0 = hn::Max(m0, hn::LoadU(d, x + i));
  if (i < n) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(n - i));
    m1 = hn::Max(m1, hn::IfThenElse(mask, hn::LoadU(d, x + i), least));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

/// x = 2^(x - max); returns the sum.
template <class T>
T power_row(T* x, Index n, T max) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto shift = hn::Set(d, max);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  Index i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    const auto e0 = power_of_two<T>(hn::Sub(hn::LoadU(d, x + i), shift));
    const auto e1 = power_of_two<T>(hn::Sub(hn::LoadU(d, x + i + step), shift));
    hn::StoreU(e0, d, x + i);
    hn::StoreU(e1, d, x + i + step);
    s0 = hn::Add(s0, e0);
    s1 = hn::Add(s1, e1);
  }
  for (; i < n; i += step) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(n - i));
    const auto e = hn::IfThenElseZero(mask, power_of_two<T>(hn::Sub(hn::LoadU(d, x + i), shift)));
    hn::StoreU(e, d, x + i);
    s0 = hn::Add(s0, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

template <class T>
void softmax_rows(const TileShape& tile, T* scores, T* max, T* sum, T* correction) {
  const Tag<T> d;
  T next[kTilePadding];
  // Blocks of rows small enough for the first cache between the two looks at them.
  for (Index begin = 0; begin < tile.rows; begin += kTilePadding) {
    const Index rows = std::min(kTilePadding, tile.rows - begin);
    for (Index i = 0; i < rows; ++i) {
      const Index row = begin + i;
      next[i] = std::max(max[row], row_max(scores + row * tile.stride, seen<T>(tile, row)));
    }
    for (Index i = rows; i < kTilePadding; ++i) next[i] = 0;
    for (Index i = 0; i < kTilePadding; i += lanes<T>()) {
      const auto before = hn::LoadU(d, max + begin + i);
      hn::StoreU(power_of_two<T>(hn::Sub(before, hn::LoadU(d, next + i))), d,
                 correction + begin + i);
    }
    for (Index i = 0; i < rows; ++i) {
      const Index row = begin + i;
      const T added = power_row(scores + row * tile.stride, seen<T>(tile, row), next[i]);
      sum[row] = sum[row] * correction[row] + added;
      max[row] = next[i];
    }
  }
}

template <class T>
void scale(Index rows, Index dim, const T* factor, T* x) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index row = 0; row < rows; ++row, x += dim) {
    if (factor[row] == T{1}) continue;
    const auto f = hn::Set(d, factor[row]);
    Index i = 0;
    for (; i + step <= dim; i += step) hn::StoreU(hn::Mul(f, hn::LoadU(d, x + i)), d, x + i);
    for (; i < dim; ++i) x[i] *= factor[row];
  }
}

template <class T>
void gradient_rows(const TileShape& tile, const T* lse, const T* delta, T* scores, T* d_p) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index row = 0; row < tile.rows; ++row) {
    const auto shift = hn::Set(d, lse[row]), level = hn::Set(d, delta[row]);
    T* s = scores + row * tile.stride;
    T* g = d_p + row * tile.stride;
    const Index n = seen<T>(tile, row);
    for (Index i = 0; i < n; i += step) {  // may run over into the padding
      const auto p = power_of_two<T>(hn::Sub(hn::LoadU(d, s + i), shift));
      hn::StoreU(p, d, s + i);
      hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, g + i), level)), d, g + i);
    }
  }
}

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

/// The same for any number of columns of `out`.
template <class T, int kHeads>
void add_row_products(const T* w, Index w_stride, const T* b, Index b_stride, Index n, T* out,
                      Index out_stride, Index dim) {
  const Index step = lanes<T>();
  Index c = 0;
  for (; c + 2 * step <= dim; c += 2 * step) {
    add_products<T, kHeads, 2>(w, w_stride, b + c, b_stride, n, out + c, out_stride);
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
  for (; c + 2 * step <= dim; c += 2 * step) {
    add_transposed<T, kKeys, 2>(w, w_stride, a + c, first, rows, dim, out + c);
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

template <class T>
void stack(const T* src, Index src_stride, Index head_stride, Index rows, Index heads, Index dim,
           T scale, T* dst) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto factor = hn::Set(d, scale);
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, dst += dim) {
      const T* from = src + i * src_stride + h * head_stride;
      Index c = 0;
      for (; c + step <= dim; c += step) {
        hn::StoreU(hn::Mul(factor, hn::LoadU(d, from + c)), d, dst + c);
      }
      for (; c < dim; ++c) dst[c] = scale * from[c];
    }
  }
}

template <class T>
void dots(const T* a, Index a_stride, Index head_stride, const T* b, Index rows, Index heads,
          Index dim, T* out) {
  const Tag<T> d;
  const Index step = lanes<T>();
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, b += dim, ++out) {
      const T* from = a + i * a_stride + h * head_stride;
      auto acc = hn::Zero(d);
      Index c = 0;
      for (; c + step <= dim; c += step) {
        acc = hn::MulAdd(hn::LoadU(d, from + c), hn::LoadU(d, b + c), acc);
      }
      T sum = hn::GetLane(hn::SumOfLanes(d, acc));
      for (; c < dim; ++c) sum += from[c] * b[c];
      *out = sum;
    }
  }
}

template <class T>
void add_parts(const T* const* parts, Index count, Index rows, Index heads, Index dim, T factor,
               T* dst, Index dst_stride, Index head_stride) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto f = hn::Set(d, factor);
  Index from = 0;
  for (Index i = 0; i < rows / heads; ++i) {
    for (Index h = 0; h < heads; ++h, from += dim) {
      T* to = dst + i * dst_stride + h * head_stride;
      Index c = 0;
      for (; c + step <= dim; c += step) {
        auto sum = hn::Zero(d);
        for (Index p = 0; p < count; ++p) sum = hn::Add(sum, hn::LoadU(d, parts[p] + from + c));
        hn::StoreU(hn::Mul(f, sum), d, to + c);
      }
      for (; c < dim; ++c) {
        T sum = 0;
        for (Index p = 0; p < count; ++p) sum += parts[p][from + c];
        to[c] = factor * sum;
      }
    }
  }
}

template <class T>
void write(const T* src, Index rows, Index dim, T factor, bool add, T* dst, Index dst_stride) {
  const Tag<T> d;
  const Index step = lanes<T>();
  const auto f = hn::Set(d, factor);
  for (Index r = 0; r < rows; ++r, src += dim, dst += dst_stride) {
    Index c = 0;
    for (; c + step <= dim; c += step) {
      const auto x = hn::LoadU(d, src + c);
      hn::StoreU(add ? hn::MulAdd(f, x, hn::LoadU(d, dst + c)) : hn::Mul(f, x), d, dst + c);
    }
    for (; c < dim; ++c) dst[c] = add ? dst[c] + factor * src[c] : factor * src[c];
  }
}

// HWY_EXPORT takes plain functions: one name per type.
#define COPPICE_ATTENTION_KERNELS(T, Suffix)                                                       \
  void Softmax##Suffix(const TileShape& tile, T* s, T* max, T* sum, T* c) {                        \
    softmax_rows<T>(tile, s, max, sum, c);                                                         \
  }                                                                                                \
  void Scale##Suffix(Index rows, Index dim, const T* f, T* x) { scale<T>(rows, dim, f, x); }       \
  void Gradient##Suffix(const TileShape& tile, const T* lse, const T* delta, T* s, T* g) {         \
    gradient_rows<T>(tile, lse, delta, s, g);                                                      \
  }                                                                                                \
  void Square##Suffix(const TileShape& tile, const T* w, const T* b, Index ldb, Index dim, T* o) { \
    square<T>(tile, w, b, ldb, dim, o);                                                            \
  }                                                                                                \
  void SquareTransposed##Suffix(const TileShape& tile, const T* w, const T* a, Index dim, T* o) {  \
    square_transposed<T>(tile, w, a, dim, o);                                                      \
  }                                                                                                \
  void Stack##Suffix(const T* src, Index ld, Index lh, Index rows, Index heads, Index dim,         \
                     T factor, T* dst) {                                                           \
    stack<T>(src, ld, lh, rows, heads, dim, factor, dst);                                          \
  }                                                                                                \
  void Dots##Suffix(const T* a, Index lda, Index lh, const T* b, Index rows, Index heads,          \
                    Index dim, T* out) {                                                           \
    dots<T>(a, lda, lh, b, rows, heads, dim, out);                                                 \
  }                                                                                                \
  void AddParts##Suffix(const T* const* parts, Index count, Index rows, Index heads, Index dim,    \
                        T factor, T* dst, Index ld, Index lh) {                                    \
    add_parts<T>(parts, count, rows, heads, dim, factor, dst, ld, lh);                             \
  }                                                                                                \
  void Write##Suffix(const T* src, Index rows, Index dim, T factor, bool add, T* dst, Index ld) {  \
    write<T>(src, rows, dim, factor, add, dst, ld);                                                \
  }
COPPICE_ATTENTION_KERNELS(float, F32)
COPPICE_ATTENTION_KERNELS(double, F64)
#undef COPPICE_ATTENTION_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace coppice::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {

using Index = std::int64_t;

#define COPPICE_ATTENTION_DISPATCH(T, Suffix)                                                      \
  HWY_EXPORT(Softmax##Suffix);                                                                     \
  HWY_EXPORT(Scale##Suffix);                                                                       \
  HWY_EXPORT(Gradient##Suffix);                                                                    \
  HWY_EXPORT(Square##Suffix);                                                                      \
  HWY_EXPORT(SquareTransposed##Suffix);                                                            \
  HWY_EXPORT(Stack##Suffix);                                                                       \
  HWY_EXPORT(Dots##Suffix);                                                                        \
  HWY_EXPORT(AddParts##Suffix);                                                                    \
  void softmax_tile(const TileShape& tile, T* s, T* max, T* sum, T* c) {                           \
    HWY_DYNAMIC_DISPATCH(Softmax##Suffix)(tile, s, max, sum, c);                                   \
  }                                                                                                \
  void scale_rows(Index rows, Index dim, const T* f, T* x) {                                       \
    HWY_DYNAMIC_DISPATCH(Scale##Suffix)(rows, dim, f, x);                                          \
  }                                                                                                \
  void gradient_tile(const TileShape& tile, const T* lse, const T* delta, T* s, T* g) {            \
    HWY_DYNAMIC_DISPATCH(Gradient##Suffix)(tile, lse, delta, s, g);                                \
  }                                                                                                \
  void multiply_square(const TileShape& tile, const T* w, const T* b, Index ldb, Index dim,        \
                       T* o) {                                                                     \
    HWY_DYNAMIC_DISPATCH(Square##Suffix)(tile, w, b, ldb, dim, o);                                 \
  }                                                                                                \
  void multiply_square_transposed(const TileShape& tile, const T* w, const T* a, Index dim,        \
                                  T* o) {                                                          \
    HWY_DYNAMIC_DISPATCH(SquareTransposed##Suffix)(tile, w, a, dim, o);                            \
  }                                                                                                \
  void stack_rows(const T* src, Index ld, Index lh, Index rows, Index heads, Index dim, T factor,  \
                  T* dst) {                                                                        \
    HWY_DYNAMIC_DISPATCH(Stack##Suffix)(src, ld, lh, rows, heads, dim, factor, dst);               \
  }                                                                                                \
  void row_dots(const T* a, Index lda, Index lh, const T* b, Index rows, Index heads, Index dim,   \
                T* out) {                                                                          \
    HWY_DYNAMIC_DISPATCH(Dots##Suffix)(a, lda, lh, b, rows, heads, dim, out);                      \
  }                                                                                                \
  void sum_parts(const T* const* parts, Index count, Index rows, Index heads, Index dim, T factor, \
                 T* dst, Index ld, Index lh) {                                                     \
    HWY_DYNAMIC_DISPATCH(AddParts##Suffix)(parts, count, rows, heads, dim, factor, dst, ld, lh);   \
  }                                                                                                \
  HWY_EXPORT(Write##Suffix);                                                                       \
  void write_rows(const T* src, Index rows, Index dim, T factor, bool add, T* dst, Index ld) {     \
    HWY_DYNAMIC_DISPATCH(Write##Suffix)(src, rows, dim, factor, add, dst, ld);                     \
  }
COPPICE_ATTENTION_DISPATCH(float, F32)
COPPICE_ATTENTION_DISPATCH(double, F64)
#undef COPPICE_ATTENTION_DISPATCH

}  // namespace coppice::cpu
#endif  // HWY_ONCE
