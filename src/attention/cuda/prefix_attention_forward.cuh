#pragma once
// The forward kernel: a block owns a tile of query rows of one head, walks over the keys that they
// see and keeps a running maximum, sum and output in registers (online softmax).
#include "attention/cuda/prefix_attention_keys.cuh"
#include "device/math.cuh"

namespace coppice::cuda {

struct ForwardArgs {
  HeadRows<const BF16> q;
  HeadRows<BF16> out;
  float* lse;  // [Hq, T]
  std::int64_t lse_stride;
  const SpaceView* spaces;
  const QueryItem* items;
  const KeyPiece* pieces;
  int heads, heads_per_kv;
  float scale;
};

/// For head dim 128, stepping through larger tiles spills (64 bytes for sm_80 with nvcc 13).
template <int kDim>
using ForwardTiling = QueryTiling<kDim, kDim <= 96 ? 64 : 32, 32, 4, 2>;

/// Queries, two tiles of keys and values, flags.
template <class Tiling>
inline constexpr int kForwardSharedBytes =
    (Tiling::kQueryElements + 4 * Tiling::kKeyElements) * 2 + Tiling::kFlagBytes;

/// One warp's rows and what it has summed up so far.
template <class Tiling>
struct ForwardRows {
  static constexpr int kDim = Tiling::kDim, kStep = Tiling::kStep, kRowTiles = Tiling::kRowTiles;

  float out[kRowTiles][kDim / 8][4];
  float max[kRowTiles][2], sum[kRowTiles][2];  // of unscaled scores; of this lane's columns

  __device__ __forceinline__ void clear() {
    set_zero<kRowTiles, kDim / 8>(out);
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) {
      max[f][0] = max[f][1] = -INFINITY;
      sum[f][0] = sum[f][1] = 0.0f;
    }
  }

  /// Turns the scores of row half r of row tile f into probabilities beside the largest score yet.
  __device__ __forceinline__ void take(float (*scores)[4], int f, int r, float scale_log2) {
    float largest = max[f][r];
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
      largest = fmaxf(largest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    }
    largest = fmaxf(largest, device::warp_shuffle_xor(largest, 1));
    largest = fmaxf(largest, device::warp_shuffle_xor(largest, 2));
    const float shrink = device::fast_exp2((max[f][r] - largest) * scale_log2);
    const float shift = -largest * scale_log2;
    max[f][r] = largest;
    float tile_sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        scores[n][e] = device::fast_exp2(fmaf(scores[n][e], scale_log2, shift));
        tile_sum += scores[n][e];
      }
    }
    sum[f][r] = sum[f][r] * shrink + tile_sum;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      out[f][n][2 * r] *= shrink;
      out[f][n][2 * r + 1] *= shrink;
    }
  }

  /// Adds kStep keys. At an edge of the mask, scores of keys behind bound(row) count as -inf.
  __device__ __forceinline__ void add(const BF16* queries, int warp_row, const BF16* keys,
                                      const BF16* values, int lane, float scale_log2,
                                      const KeyBound& bound) {
    float scores[kRowTiles][kStep / 8][4];
    multiply_rows<kDim, kStep, kRowTiles>(scores, queries, warp_row, keys, lane);
    if (bound(0) < kStep - 1) hide(scores, lane, bound);
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) take(scores[f], f, r, scale_log2);
    }
    multiply_add<kDim, kStep, kRowTiles>(out, scores, values, lane);
  }

  __device__ __forceinline__ void hide(float (*scores)[kStep / 8][4], int lane,
                                       const KeyBound& bound) const {
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int last = bound(16 * f + 8 * r + (lane >> 2)) - (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n) {
          if (8 * n > last) scores[f][n][2 * r] = -INFINITY;
          if (8 * n + 1 > last) scores[f][n][2 * r + 1] = -INFINITY;
        }
      }
    }
  }
};

template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    prefix_attention_forward_kernel(const ForwardArgs args) {
  constexpr int kDim = Tiling::kDim, kRowTiles = Tiling::kRowTiles;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) % args.heads;
  const QueryItem item = args.items[static_cast<int>(blockIdx.x) / args.heads];
  const int warp_row = warp * Tiling::kWarpRows;
  const float scale_log2 = args.scale * kLog2E;

  auto* queries = reinterpret_cast<BF16*>(device::shared_memory());
  BF16* tiles = queries + Tiling::kQueryElements;
  copy_rows<kDim, Tiling::kRows, Tiling::kThreads>(queries, args.q, head, item.row, item.rows);
  KeyWalk<Tiling> walk{
      args.spaces, args.pieces + item.first_piece,
      item.pieces, head / args.heads_per_kv,
      tiles,       reinterpret_cast<std::uint32_t*>(tiles + 4 * Tiling::kKeyElements)};
  // Whether the warp has rows that see a key of the tile.
  const auto takes_part = [&](const KeyPiece& piece, int at) {
    return warp_row < item.rows &&
           at < (piece.causal != 0 ? warp_row + Tiling::kWarpRows : piece.rows);
  };

  ForwardRows<Tiling> rows;
  rows.clear();
  walk.template run<Weighted::kValues>(
      [&](const BF16* values, const KeyPiece& piece, int at) {
        if (!takes_part(piece, at)) return;
        const KeyBound bound(piece, warp_row, at);
#pragma unroll
        for (int f = 0; f < kRowTiles; ++f) {
          spread_garbage<kDim, Tiling::kKeys>(rows.out[f], values, lane, [&](int row, int key) {
            return key <= bound(16 * f + row);
          });
        }
      },
      [&](const BF16* keys, const BF16* values, const KeyPiece& piece, int at) {
#pragma unroll 1
        for (int step = 0; step < Tiling::kKeys; step += Tiling::kStep) {
          if (!takes_part(piece, at + step)) return;
          rows.add(queries, warp_row, keys + step * kDim, values + step * kDim, lane, scale_log2,
                   KeyBound(piece, warp_row, at + step));
        }
      });
  device::wait_copies<0>();  // of the queries, where they see no key

#pragma unroll
  for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = rows.sum[f][r];
      sum += device::warp_shuffle_xor(sum, 1);
      sum += device::warp_shuffle_xor(sum, 2);
      const int row = warp_row + 16 * f + 8 * r + (lane >> 2);
      if (row >= item.rows) continue;
      const float inverse = item.pieces == 0 ? 0.0f : 1.0f / sum;
      BF16* to = args.out.data + (item.row + row) * args.out.row_stride +
                 head * args.out.head_stride + (lane & 3) * 2;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<std::uint32_t*>(to + 8 * n) =
            device::pack_bf16(rows.out[f][n][2 * r] * inverse, rows.out[f][n][2 * r + 1] * inverse);
      }
      if ((lane & 3) == 0) {
        // A row that sees nothing: -inf + log 0.
        args.lse[head * args.lse_stride + item.row + row] =
            rows.max[f][r] * args.scale + device::fast_log2(sum) * kLn2;
      }
    }
  }
}

}  // namespace coppice::cuda
