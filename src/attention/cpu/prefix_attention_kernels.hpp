#pragma once
// The loops of prefix attention on the CPU: products of tiles, softmax, moving rows. They know
// tiles, not plans.
//
// Query rows of one key-value head are *stacked*: row r of a tile is query row r / heads with query
// head r % heads. One multiplication then serves every head that shares a key, and the rows of a
// block of query rows lie together.
#include <cstdint>

namespace coppice::cpu {

/// Rows of score tiles are this many elements apart or a multiple, and so may be read past their
/// end up to there. Vectors of statistics are padded to it too.
inline constexpr std::int64_t kTilePadding = 16;

/// Where the seen entries of a tile are. Every stacked row sees the first `full` columns; of the
/// `square` columns behind them (0: no square) row r sees the first r / heads + 1.
struct TileShape {
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t full;
  std::int64_t square;
  std::int64_t stride;

  std::int64_t columns() const { return full + square; }
};

// Every function exists for float and double. Sums run in a fixed order per kind of CPU.

/// dst[r] = scale * src row r, stacked: src [rows / heads, heads, dim] with its own row stride.
void stack_rows(const float* src, std::int64_t src_stride, std::int64_t head_stride,
                std::int64_t rows, std::int64_t heads, std::int64_t dim, float scale, float* dst);
void stack_rows(const double* src, std::int64_t src_stride, std::int64_t head_stride,
                std::int64_t rows, std::int64_t heads, std::int64_t dim, double scale, double* dst);

/// One step of the online softmax over scores in units of ln 2: scores become 2^(score - max), max
/// and sum go on, and `correction` is what sums made before must be multiplied by. Unseen entries
/// are not read.
void softmax_tile(const TileShape& tile, float* scores, float* max, float* sum, float* correction);
void softmax_tile(const TileShape& tile, double* scores, double* max, double* sum,
                  double* correction);

/// x[r] *= factor[r]
void scale_rows(std::int64_t rows, std::int64_t dim, const float* factor, float* x);
void scale_rows(std::int64_t rows, std::int64_t dim, const double* factor, double* x);

/// dst, not stacked: row r = factor[r] * src[r].
void unstack_rows(const float* src, const float* factor, std::int64_t rows, std::int64_t heads,
                  std::int64_t dim, float* dst, std::int64_t dst_stride, std::int64_t head_stride);
void unstack_rows(const double* src, const double* factor, std::int64_t rows, std::int64_t heads,
                  std::int64_t dim, double* dst, std::int64_t dst_stride, std::int64_t head_stride);

/// scores become p = 2^(score - lse); d_probability becomes p (d_probability - delta).
void gradient_tile(const TileShape& tile, const float* lse, const float* delta, float* scores,
                   float* d_probability);
void gradient_tile(const TileShape& tile, const double* lse, const double* delta, double* scores,
                   double* d_probability);

/// Keys lie in *panels* of this many for score_tile: panel p is [dim, kKeyPanel], key j in column
/// j % kKeyPanel. The last one is filled up with zeros.
inline constexpr std::int64_t kKeyPanel = 64;
inline std::int64_t key_panel_elements(std::int64_t keys, std::int64_t dim) {
  return (keys + kKeyPanel - 1) / kKeyPanel * kKeyPanel * dim;
}
void transpose_keys(const float* keys, std::int64_t key_stride, std::int64_t count,
                    std::int64_t dim, float* panels);
void transpose_keys(const double* keys, std::int64_t key_stride, std::int64_t count,
                    std::int64_t dim, double* panels);

/// scores = q K^T for the tile's columns, which are the keys from `first` on, a multiple of
/// kTilePadding; entries that no row of a block sees are left out, unseen ones may be written.
void score_tile(const TileShape& tile, const float* q, std::int64_t dim, const float* key_panels,
                std::int64_t first, float* scores);
void score_tile(const TileShape& tile, const double* q, std::int64_t dim, const double* key_panels,
                std::int64_t first, double* scores);

/// out += W B over what each row sees: stacked row r adds W[r, j] B[j] for its keys j only, so that
/// a key behind it cannot reach it, whatever it holds.
void add_seen(const TileShape& tile, const float* w, const float* b, std::int64_t b_stride,
              std::int64_t dim, float* out);
void add_seen(const TileShape& tile, const double* w, const double* b, std::int64_t b_stride,
              std::int64_t dim, double* out);

/// out += W^T A the same way: key j adds W[r, j] A[r] for the rows r that see it only.
void add_seeing(const TileShape& tile, const float* w, const float* a, std::int64_t dim,
                float* out);
void add_seeing(const TileShape& tile, const double* w, const double* a, std::int64_t dim,
                double* out);

/// out[i] = a[i] . b[i] for rows of `dim`; b is stacked, a is not (see stack_rows).
void row_dots(const float* a, std::int64_t a_stride, std::int64_t head_stride, const float* b,
              std::int64_t rows, std::int64_t heads, std::int64_t dim, float* out);
void row_dots(const double* a, std::int64_t a_stride, std::int64_t head_stride, const double* b,
              std::int64_t rows, std::int64_t heads, std::int64_t dim, double* out);

/// dst, not stacked, = factor * (parts[0] + parts[1] + ...), each stacked; 0 where count is 0.
void sum_parts(const float* const* parts, std::int64_t count, std::int64_t rows, std::int64_t heads,
               std::int64_t dim, float factor, float* dst, std::int64_t dst_stride,
               std::int64_t head_stride);
void sum_parts(const double* const* parts, std::int64_t count, std::int64_t rows,
               std::int64_t heads, std::int64_t dim, double factor, double* dst,
               std::int64_t dst_stride, std::int64_t head_stride);

/// dst rows, dst_stride apart, = factor * src, or += if `add`.
void write_rows(const float* src, std::int64_t rows, std::int64_t dim, float factor, bool add,
                float* dst, std::int64_t dst_stride);
void write_rows(const double* src, std::int64_t rows, std::int64_t dim, double factor, bool add,
                double* dst, std::int64_t dst_stride);

}  // namespace coppice::cpu
