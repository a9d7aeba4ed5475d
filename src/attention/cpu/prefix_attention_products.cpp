// The matrix products of attention, as tiles need them: the head dimension is short, rows of one
// tile see different numbers of keys, and a key that a row does not see must not be multiplied by
// zero, since zero times garbage is garbage. Sums are held in registers; every row's sums are made
// in the order of its keys, whatever rows lie beside it. Highway compiles them once per kind of CPU
// and chooses at run time.
#include "attention/cpu/prefix_attention_kernels.hpp"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/prefix_attention_products.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include <algorithm>

#include "attention/cpu/vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu {
namespace HWY_NAMESPACE {

/// Rows of a result, and vectors of its columns, that are summed side by side: what fits the
/// registers, of which machines with 64-byte vectors have 32 and others 16.
inline constexpr int kSideBySide = 6;
inline constexpr int kWide = HWY_MAX_BYTES == 64 ? 4 : 2;

/// Where the factors of a result's rows lie: that of row i for summand j at w + i * row + j * sum.
struct Factors {
  Index row, sum;
};

/// out[i] = (kAdd: out[i] +) sum over j < n of w[i, j] b[j], for kRows rows, kVectors vectors wide.
template <bool kAdd, class T, int kRows, int kVectors>
HWY_INLINE void products(const T* w, Factors step, const T* b, Index b_stride, Index n, T* out,
                         Index out_stride) {
  const Tag<T> d;
  const Index wide = lanes<T>();
  Vector<T> acc[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      acc[i][v] = kAdd ? hn::LoadU(d, out + i * out_stride + v * wide) : hn::Zero(d);
    }
  }
  for (Index j = 0; j < n; ++j, w += step.sum, b += b_stride) {
    Vector<T> row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * wide);
    for (int i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, w[i * step.row]);
      for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::MulAdd(factor, row[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[i][v], d, out + i * out_stride + v * wide);
  }
}

/// out[i] += the same, for any number of columns.
template <class T, int kRows>
void add_row_products(const T* w, Factors step, const T* b, Index b_stride, Index n, T* out,
                      Index columns) {
  const Index wide = lanes<T>();
  Index c = 0;
  for (; c + kWide * wide <= columns; c += kWide * wide) {
    products<true, T, kRows, kWide>(w, step, b + c, b_stride, n, out + c, columns);
  }
  for (; c + wide <= columns; c += wide) {
    products<true, T, kRows, 1>(w, step, b + c, b_stride, n, out + c, columns);
  }
  for (; c < columns; ++c) {
    for (int i = 0; i < kRows; ++i) {
      T sum = out[i * columns + c];
      for (Index j = 0; j < n; ++j) sum += w[i * step.row + j * step.sum] * b[j * b_stride + c];
      out[i * columns + c] = sum;
    }
  }
}

/// f<kRows>(first) over [begin, end), kSideBySide rows at a time and then the rest.
template <class F>
HWY_INLINE void for_row_blocks(Index begin, Index end, const F& f) {
  for (; begin + kSideBySide <= end; begin += kSideBySide) {
    f.template operator()<kSideBySide>(begin);
  }
  if (begin + 3 <= end) {
    f.template operator()<3>(begin);
    begin += 3;
  }
  for (; begin < end; ++begin) f.template operator()<1>(begin);
}

template <class T>
void panels(const T* keys, Index key_stride, Index count, Index dim, T* out) {
  constexpr Index kBlock = 8;
  for (Index first = 0; first < count; first += kKeyPanel, out += kKeyPanel * dim) {
    const Index width = std::min(kKeyPanel, count - first);
    for (Index c = 0; c < dim; c += kBlock) {
      const Index c_end = std::min(c + kBlock, dim);
      for (Index j = 0; j < width; ++j) {
        const T* key = keys + (first + j) * key_stride;
        for (Index i = c; i < c_end; ++i) out[i * kKeyPanel + j] = key[i];
      }
    }
    for (Index i = 0; i < dim && width < kKeyPanel; ++i) {
      std::fill(out + i * kKeyPanel + width, out + (i + 1) * kKeyPanel, T{0});
    }
  }
}

template <class T>
void score(const TileShape& tile, const T* q, Index dim, const T* key_panels, Index first,
           T* scores) {
  const Index wide = lanes<T>();
  const Factors step{dim, 1};
  for (Index begin = 0; begin < tile.columns();) {
    const Index key = first + begin, in_panel = key % kKeyPanel;
    const Index end = std::min(begin + kKeyPanel - in_panel, tile.columns());
    const T* panel = key_panels + (key - in_panel) * dim + in_panel;
    // Rows before this one see nothing of these columns.
    const Index row = begin < tile.full ? 0 : (begin - tile.full) * tile.heads;
    for_row_blocks(row, tile.rows, [&]<int kRows>(Index r) {
      const T* from = q + r * dim;
      T* to = scores + r * tile.stride;
      Index c = begin;
      for (; c + (kWide - 1) * wide < end && c - begin + in_panel + kWide * wide <= kKeyPanel &&
             c + kWide * wide <= tile.stride;
           c += kWide * wide) {
        products<false, T, kRows, kWide>(from, step, panel + (c - begin), kKeyPanel, dim, to + c,
                                         tile.stride);
      }
      for (; c < end; c += wide) {
        products<false, T, kRows, 1>(from, step, panel + (c - begin), kKeyPanel, dim, to + c,
                                     tile.stride);
      }
    });
    begin = end;
  }
}

template <class T>
void seen(const TileShape& tile, const T* w, const T* b, Index b_stride, Index dim, T* out) {
  const Factors step{tile.stride, 1};
  for_row_blocks(0, tile.rows, [&]<int kRows>(Index first) {
    const auto sees = [&](Index r) {
      return tile.full + (tile.square == 0 ? 0 : (first + r) / tile.heads + 1);
    };
    const T* from = w + first * tile.stride;
    T* to = out + first * dim;
    // What the first row sees together, the rest one by one.
    const Index common = sees(0);
    add_row_products<T, kRows>(from, step, b, b_stride, common, to, dim);
    for (Index r = 1; r < kRows; ++r) {
      if (sees(r) == common) continue;
      add_row_products<T, 1>(from + r * tile.stride + common, step, b + common * b_stride, b_stride,
                             sees(r) - common, to + r * dim, dim);
    }
  });
}

template <class T>
void seeing(const TileShape& tile, const T* w, const T* a, Index dim, T* out) {
  const Factors step{1, tile.stride};
  const auto add = [&]<int kKeys>(Index key, Index row, Index row_end) {
    add_row_products<T, kKeys>(w + row * tile.stride + key, step, a + row * dim, dim, row_end - row,
                               out + key * dim, dim);
  };
  for_row_blocks(0, tile.full,
                 [&]<int kKeys>(Index key) { add.template operator()<kKeys>(key, 0, tile.rows); });
  for_row_blocks(0, tile.square, [&]<int kKeys>(Index j) {
    // The corner key by key, then all rows that see the last of the keys and so all of them.
    const Index all_see = (j + kKeys - 1) * tile.heads;
    for (Index k = 0; k + 1 < kKeys; ++k) {
      add.template operator()<1>(tile.full + j + k, (j + k) * tile.heads, all_see);
    }
    add.template operator()<kKeys>(tile.full + j, all_see, tile.rows);
  });
}

// HWY_EXPORT takes plain functions: one name per type.
#define COPPICE_KERNELS(T, Suffix)                                                               \
  void Panels##Suffix(const T* keys, std::int64_t key_stride, std::int64_t count,                \
                      std::int64_t dim, T* out) {                                                \
    panels<T>(keys, key_stride, count, dim, out);                                                \
  }                                                                                              \
  void Score##Suffix(const TileShape& tile, const T* q, std::int64_t dim, const T* key_panels,   \
                     std::int64_t first, T* scores) {                                            \
    score<T>(tile, q, dim, key_panels, first, scores);                                           \
  }                                                                                              \
  void Seen##Suffix(const TileShape& tile, const T* w, const T* b, std::int64_t b_stride,        \
                    std::int64_t dim, T* out) {                                                  \
    seen<T>(tile, w, b, b_stride, dim, out);                                                     \
  }                                                                                              \
  void Seeing##Suffix(const TileShape& tile, const T* w, const T* a, std::int64_t dim, T* out) { \
    seeing<T>(tile, w, a, dim, out);                                                             \
  }
COPPICE_KERNELS(float, F32)
COPPICE_KERNELS(double, F64)
#undef COPPICE_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace coppice::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {

#define COPPICE_DISPATCH(T, Suffix)                                                          \
  HWY_EXPORT(Panels##Suffix);                                                                \
  void transpose_keys(const T* keys, std::int64_t key_stride, std::int64_t count,            \
                      std::int64_t dim, T* out) {                                            \
    HWY_DYNAMIC_DISPATCH(Panels##Suffix)(keys, key_stride, count, dim, out);                 \
  }                                                                                          \
  HWY_EXPORT(Score##Suffix);                                                                 \
  void score_tile(const TileShape& tile, const T* q, std::int64_t dim, const T* key_panels,  \
                  std::int64_t first, T* scores) {                                           \
    HWY_DYNAMIC_DISPATCH(Score##Suffix)(tile, q, dim, key_panels, first, scores);            \
  }                                                                                          \
  HWY_EXPORT(Seen##Suffix);                                                                  \
  void add_seen(const TileShape& tile, const T* w, const T* b, std::int64_t b_stride,        \
                std::int64_t dim, T* out) {                                                  \
    HWY_DYNAMIC_DISPATCH(Seen##Suffix)(tile, w, b, b_stride, dim, out);                      \
  }                                                                                          \
  HWY_EXPORT(Seeing##Suffix);                                                                \
  void add_seeing(const TileShape& tile, const T* w, const T* a, std::int64_t dim, T* out) { \
    HWY_DYNAMIC_DISPATCH(Seeing##Suffix)(tile, w, a, dim, out);                              \
  }
COPPICE_DISPATCH(float, F32)
COPPICE_DISPATCH(double, F64)
#undef COPPICE_DISPATCH

}  // namespace coppice::cpu
#endif  // HWY_ONCE
