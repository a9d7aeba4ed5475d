#pragma once
// The backward's query side: rowsum(dO * O), and dQ, whose kernel owns a tile of query rows of one
// head and walks over the keys that they see, as the forward does.
#include <type_traits>

#include "attention/cuda/prefix_attention_keys.cuh"
#include "device/math.cuh"

namespace coppice::cuda {

struct StatisticsArgs {
  HeadRows<const BF16> out, d_out;
  const float* lse;  // [Hq, T]
  std::int64_t lse_stride;
  RowStatistics* statistics;  // [T, Hq]
  int rows, heads;
};

inline constexpr int kStatisticsWarps = 4;

/// One warp for each row and head.
template <int kDim>
__global__ void __launch_bounds__(32 * kStatisticsWarps)
    prefix_attention_statistics_kernel(const StatisticsArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto place = static_cast<std::int64_t>(blockIdx.x) * kStatisticsWarps + threadIdx.x / 32;
  if (place >= static_cast<std::int64_t>(args.rows) * args.heads) return;
  const auto row = place / args.heads, head = place % args.heads;
  const auto* out = reinterpret_cast<const std::uint32_t*>(
      args.out.data + row * args.out.row_stride + head * args.out.head_stride);
  const auto* d_out = reinterpret_cast<const std::uint32_t*>(
      args.d_out.data + row * args.d_out.row_stride + head * args.d_out.head_stride);
  float sum = 0.0f;
  for (int i = lane; i < kDim / 2; i += 32) {
    sum = fmaf(device::low_bf16(out[i]), device::low_bf16(d_out[i]), sum);
    sum = fmaf(device::high_bf16(out[i]), device::high_bf16(d_out[i]), sum);
  }
  sum = device::warp_sum(sum);
  if (lane != 0) return;
  RowStatistics& to = args.statistics[place];
  to.lse = args.lse[head * args.lse_stride + row] * kLog2E;
  to.delta = sum;
  to.unused[0] = to.unused[1] = 0.0f;
}

struct BackwardQueriesArgs {
  HeadRows<const BF16> q, d_out;
  HeadRows<BF16> dq;
  const RowStatistics* statistics;  // [T, Hq]
  const SpaceView* spaces;
  const QueryItem* items;
  const KeyPiece* pieces;
  int heads, heads_per_kv;
  float scale;
};

/// For head dim 128, two row tiles for each warp spill (68 bytes with nvcc 13).
template <int kDim>
using BackwardQueriesTiling = std::conditional_t<kDim <= 96, QueryTiling<kDim, 64, 32, 4, 2>,
                                                 QueryTiling<kDim, 64, 64, 4, 1>>;

/// Queries and dO, two tiles of keys and values, statistics of the queries, flags.
template <class Tiling>
inline constexpr int kBackwardQueriesSharedBytes =
    (2 * Tiling::kQueryElements + 4 * Tiling::kKeyElements) * 2 +
    Tiling::kRows* static_cast<int>(sizeof(RowStatistics)) + Tiling::kFlagBytes;

template <class Tiling>
struct BackwardQueryRows {
  static constexpr int kDim = Tiling::kDim, kStep = Tiling::kStep, kRowTiles = Tiling::kRowTiles;

  float dq[kRowTiles][kDim / 8][4];

  /// Adds kStep keys. At an edge of the mask, keys behind bound(row) count nothing.
  __device__ __forceinline__ void add(const BF16* queries, const BF16* d_out,
                                      const RowStatistics* statistics, int warp_row,
                                      const BF16* keys, const BF16* values, int lane,
                                      float scale_log2, const KeyBound& bound) {
    float scores[kRowTiles][kStep / 8][4], d_scores[kRowTiles][kStep / 8][4];
    multiply_rows<kDim, kStep, kRowTiles>(scores, queries, warp_row, keys, lane);
    multiply_rows<kDim, kStep, kRowTiles>(d_scores, d_out, warp_row, values, lane);
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowStatistics& of_row = statistics[warp_row + 16 * f + 8 * r + (lane >> 2)];
        const float lse = of_row.lse, delta = of_row.delta;
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float probability =
                device::fast_exp2(fmaf(scores[f][n][2 * r + e], scale_log2, -lse));
            float& d_score = d_scores[f][n][2 * r + e];
            d_score = probability * (d_score - delta);
          }
        }
      }
    }
    if (bound(0) < kStep - 1) hide(d_scores, lane, bound);
    multiply_add<kDim, kStep, kRowTiles>(dq, d_scores, keys, lane);
  }

  __device__ __forceinline__ void hide(float (*d_scores)[kStep / 8][4], int lane,
                                       const KeyBound& bound) const {
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int last = bound(16 * f + 8 * r + (lane >> 2)) - (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n) {
          if (8 * n > last) d_scores[f][n][2 * r] = 0.0f;
          if (8 * n + 1 > last) d_scores[f][n][2 * r + 1] = 0.0f;
        }
      }
    }
  }
};

template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    prefix_attention_backward_queries_kernel(const BackwardQueriesArgs args) {
  constexpr int kDim = Tiling::kDim, kRowTiles = Tiling::kRowTiles;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) % args.heads;
  const QueryItem item = args.items[static_cast<int>(blockIdx.x) / args.heads];
  const int warp_row = warp * Tiling::kWarpRows;
  const float scale_log2 = args.scale * kLog2E;

  auto* queries = reinterpret_cast<BF16*>(device::shared_memory());
  BF16* d_out = queries + Tiling::kQueryElements;
  BF16* tiles = d_out + Tiling::kQueryElements;
  copy_rows<kDim, Tiling::kRows, Tiling::kThreads>(queries, args.q, head, item.row, item.rows);
  copy_rows<kDim, Tiling::kRows, Tiling::kThreads>(d_out, args.d_out, head, item.row, item.rows);
  auto* statistics = reinterpret_cast<RowStatistics*>(tiles + 4 * Tiling::kKeyElements);
  for (int i = static_cast<int>(threadIdx.x); i < Tiling::kRows; i += Tiling::kThreads) {
    // Rows behind the last have zero queries, dO and statistics: zeros come out.
    const auto row = static_cast<std::int64_t>(item.row + (i < item.rows ? i : 0));
    device::copy_async_16(statistics + i, args.statistics + row * args.heads + head, i < item.rows);
  }
  KeyWalk<Tiling> walk{args.spaces, args.pieces + item.first_piece,
                       item.pieces, head / args.heads_per_kv,
                       tiles,       reinterpret_cast<std::uint32_t*>(statistics + Tiling::kRows)};
  const auto takes_part = [&](const KeyPiece& piece, int at) {
    return warp_row < item.rows &&
           at < (piece.causal != 0 ? warp_row + Tiling::kWarpRows : piece.rows);
  };

  BackwardQueryRows<Tiling> rows;
  set_zero<kRowTiles, kDim / 8>(rows.dq);
  walk.template run<Weighted::kKeys>(
      [&](const BF16* keys, const KeyPiece& piece, int at) {
        if (!takes_part(piece, at)) return;
        const KeyBound bound(piece, warp_row, at);
#pragma unroll
        for (int f = 0; f < kRowTiles; ++f) {
          spread_garbage<kDim, Tiling::kKeys>(
              rows.dq[f], keys, lane, [&](int row, int key) { return key <= bound(16 * f + row); });
        }
      },
      [&](const BF16* keys, const BF16* values, const KeyPiece& piece, int at) {
#pragma unroll 1
        for (int step = 0; step < Tiling::kKeys; step += Tiling::kStep) {
          if (!takes_part(piece, at + step)) return;
          rows.add(queries, d_out, statistics, warp_row, keys + step * kDim, values + step * kDim,
                   lane, scale_log2, KeyBound(piece, warp_row, at + step));
        }
      });
  device::wait_copies<0>();  // of the queries, where they see no key

#pragma unroll
  for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + 16 * f + 8 * r + (lane >> 2);
      if (row >= item.rows) continue;
      BF16* to = args.dq.data + (item.row + row) * args.dq.row_stride + head * args.dq.head_stride +
                 (lane & 3) * 2;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<std::uint32_t*>(to + 8 * n) = device::pack_bf16(
            rows.dq[f][n][2 * r] * args.scale, rows.dq[f][n][2 * r + 1] * args.scale);
      }
    }
  }
}

}  // namespace coppice::cuda
