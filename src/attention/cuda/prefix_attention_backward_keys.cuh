#pragma once
// The backward's key side: dK and dV. A block owns a tile of key rows of one key-value head and
// walks over the queries that see it, of all heads that the key-value head serves, in a fixed
// order: no atomics, the same bits every time. Where a tile's queries are split over blocks, each
// writes a partial sum and a second kernel adds those up in order.
#include "attention/cuda/prefix_attention_garbage.cuh"
#include "device/math.cuh"

namespace coppice::cuda {

/// How it is cut for one head dim. Each warp holds 16 kRowTiles key rows.
template <int kHeadDim, int kTileQueries, int kWarpCount, int kWarpRowTiles>
struct KeyRowTiling {
  static constexpr int kDim = kHeadDim, kQueries = kTileQueries, kWarps = kWarpCount;
  static constexpr int kRowTiles = kWarpRowTiles, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarpRows * kWarps;
  static constexpr int kKeyElements = kRows * kDim, kQueryElements = kQueries * kDim;
};

template <int kDim>
using BackwardKeysTiling = KeyRowTiling<kDim, kDim == 64 ? 64 : 32, 8, 1>;

struct BackwardKeysArgs {
  HeadRows<const BF16> q, d_out;
  const RowStatistics* statistics;  // [T, Hq]
  const SpaceView* spaces;
  const SpaceGradView* grads;
  const KeyItem* items;
  const QueryPiece* pieces;
  float* partial;  // [slots, Hkv, 2, kRows, D]: dK and dV
  int heads, heads_per_kv;
  float scale;
};

/// Keys and values, two tiles of queries and dO, two times their statistics, flags.
template <class Tiling>
inline constexpr int kBackwardKeysSharedBytes =
    (2 * Tiling::kKeyElements + 4 * Tiling::kQueryElements) * 2 +
    2 * Tiling::kQueries* static_cast<int>(sizeof(RowStatistics)) + 2 * Tiling::kWarps * 4;

/// Walks over the queries of an item: tile after tile of each piece, and for each tile all heads.
template <class Tiling>
struct QueryWalk {
  static constexpr int kDim = Tiling::kDim, kQueries = Tiling::kQueries;
  static constexpr int kThreads = Tiling::kThreads, kElements = Tiling::kQueryElements;

  const BackwardKeysArgs& args;
  const QueryPiece* pieces;
  int count, first_head;
  BF16* tiles;                // two times queries and dO
  RowStatistics* statistics;  // two times kQueries
  std::uint32_t* flags;       // two times one per warp
  int next_piece = 0, next_at = 0, next_head = 0, next_buffer = 0;

  /// Calls f(queries, d_out, statistics, lead): query i of the tile sees key j of the block's keys
  /// if j <= i + lead. Before that, where queries see a part of the keys and there is garbage,
  /// spread(queries, d_out, lead), behind which the tiles hold zeros in the garbage's place.
  template <class Spread, class F>
  __device__ __forceinline__ void run(const Spread& spread, const F& f) {
    int buffer = 0;
    copy_next();
    for (int p = 0; p < count; ++p) {
      const QueryPiece piece = pieces[p];
      for (int at = 0; at < piece.rows; at += kQueries) {
        const int lead = piece.lead + at;
        for (int head = 0; head < args.heads_per_kv; ++head) {
          BF16* queries = tiles + buffer * 2 * kElements;
          BF16* d_out = queries + kElements;
          device::wait_copies<0>();
          // Behind the barrier the tile is there for all threads, and all are done with the last.
          bool garbage = false;
          if (lead < Tiling::kRows - 1) {
            const bool mine = own_chunks_hold_garbage<kDim, kQueries, kThreads>(queries) ||
                              own_chunks_hold_garbage<kDim, kQueries, kThreads>(d_out);
            garbage = barrier_any<Tiling::kWarps>(mine, flags + buffer * Tiling::kWarps);
          } else {
            __syncthreads();
          }
          copy_next();
          if (garbage) {
            spread(queries, d_out, lead);
            __syncthreads();
            clear_garbage_of_own_chunks<kDim, kQueries, kThreads>(queries);
            clear_garbage_of_own_chunks<kDim, kQueries, kThreads>(d_out);
            __syncthreads();
          }
          f(queries, d_out, statistics + buffer * kQueries, lead);
          buffer ^= 1;
        }
      }
    }
  }

  __device__ __forceinline__ void copy_next() {
    if (next_piece < count) {
      const QueryPiece piece = pieces[next_piece];
      const int head = first_head + next_head;
      const int row = piece.begin + next_at, rows = piece.rows - next_at;
      BF16* queries = tiles + next_buffer * 2 * kElements;
      copy_rows<kDim, kQueries, kThreads>(queries, args.q, head, row, rows);
      copy_rows<kDim, kQueries, kThreads>(queries + kElements, args.d_out, head, row, rows);
      for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads) {
        const auto place = static_cast<std::int64_t>(row + (i < rows ? i : 0)) * args.heads + head;
        // Rows behind the last: zero queries, dO and statistics add zeros.
        device::copy_async_16(statistics + next_buffer * kQueries + i, args.statistics + place,
                              i < rows);
      }
      next_buffer ^= 1;
      if (++next_head == args.heads_per_kv) {
        next_head = 0;
        next_at += kQueries;
        if (next_at >= piece.rows) {
          next_at = 0;
          ++next_piece;
        }
      }
    }
    device::commit_copies();
  }
};

template <class Tiling>
struct BackwardKeyRows {
  static constexpr int kDim = Tiling::kDim, kQueries = Tiling::kQueries;
  static constexpr int kRowTiles = Tiling::kRowTiles;

  float dk[kRowTiles][kDim / 8][4], dv[kRowTiles][kDim / 8][4];

  /// Adds one tile of queries and dO. `edge`: some of them do not see some of the warp's keys.
  __device__ __forceinline__ void add(const BF16* keys, const BF16* values, int warp_row,
                                      const BF16* queries, const BF16* d_out,
                                      const RowStatistics* statistics, int lane, float scale_log2,
                                      int lead, bool edge) {
    // Transposed: a row for each key.
    float scores[kRowTiles][kQueries / 8][4], d_scores[kRowTiles][kQueries / 8][4];
    multiply_rows<kDim, kQueries, kRowTiles>(scores, keys, warp_row, queries, lane);
    multiply_rows<kDim, kQueries, kRowTiles>(d_scores, values, warp_row, d_out, lane);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int query = 8 * n + (lane & 3) * 2 + c;
        const float lse = statistics[query].lse, delta = statistics[query].delta;
#pragma unroll
        for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float& score = scores[f][n][2 * r + c];
            float& d_score = d_scores[f][n][2 * r + c];
            score = device::fast_exp2(fmaf(score, scale_log2, -lse));
            d_score = score * (d_score - delta);
          }
        }
      }
    }
    if (edge) hide(scores, d_scores, warp_row + (lane >> 2) - (lane & 3) * 2 - lead);
    multiply_add<kDim, kQueries, kRowTiles>(dv, scores, d_out, lane);
    multiply_add<kDim, kQueries, kRowTiles>(dk, d_scores, queries, lane);
  }

  /// Sets to zero what belongs to keys behind a query; `first` is that of a lane's first element.
  __device__ __forceinline__ void hide(float (*scores)[kQueries / 8][4],
                                       float (*d_scores)[kQueries / 8][4], int first) const {
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first + 16 * f + 8 * (e >> 1) > 8 * n + (e & 1)) {
            scores[f][n][e] = d_scores[f][n][e] = 0.0f;
          }
        }
      }
    }
  }
};

/// Writes two neighbouring elements, or adds them to what is there.
__device__ __forceinline__ void store_gradient(const HeadRows<void>& to, bool is_f32, bool adds,
                                               int row, int head, int column, float first,
                                               float second) {
  const auto element = row * to.row_stride + head * to.head_stride + column;
  if (is_f32) {
    float* place = static_cast<float*>(to.data) + element;
    place[0] = adds ? place[0] + first : first;
    place[1] = adds ? place[1] + second : second;
  } else {
    auto* place = reinterpret_cast<std::uint32_t*>(static_cast<BF16*>(to.data) + element);
    const std::uint32_t old = adds ? *place : 0u;
    *place = device::pack_bf16(adds ? device::low_bf16(old) + first : first,
                               adds ? device::high_bf16(old) + second : second);
  }
}

template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    prefix_attention_backward_keys_kernel(const BackwardKeysArgs args) {
  constexpr int kDim = Tiling::kDim, kRowTiles = Tiling::kRowTiles, kRows = Tiling::kRows;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int kv_heads = args.heads / args.heads_per_kv;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const KeyItem item = args.items[static_cast<int>(blockIdx.x) / kv_heads];
  const int warp_row = warp * Tiling::kWarpRows;
  const float scale_log2 = args.scale * kLog2E;

  auto* keys = reinterpret_cast<BF16*>(device::shared_memory());
  BF16* values = keys + Tiling::kKeyElements;
  BF16* tiles = values + Tiling::kKeyElements;
  auto* statistics = reinterpret_cast<RowStatistics*>(tiles + 4 * Tiling::kQueryElements);
  auto* flags = reinterpret_cast<std::uint32_t*>(statistics + 2 * Tiling::kQueries);
  {
    const SpaceView space = args.spaces[item.space];
    copy_rows<kDim, kRows, Tiling::kThreads>(keys, space.k, kv_head, item.begin, item.rows);
    copy_rows<kDim, kRows, Tiling::kThreads>(values, space.v, kv_head, item.begin, item.rows);
  }
  QueryWalk<Tiling> walk{args,        args.pieces + item.first_piece,
                         item.pieces, kv_head * args.heads_per_kv,
                         tiles,       statistics,
                         flags};
  // Whether the warp has rows that a query of the tile sees.
  const auto takes_part = [&](int lead) {
    return warp_row < item.rows && warp_row <= lead + Tiling::kQueries - 1;
  };

  BackwardKeyRows<Tiling> rows;
  set_zero<kRowTiles, kDim / 8>(rows.dk);
  set_zero<kRowTiles, kDim / 8>(rows.dv);
  walk.run(
      [&](const BF16* queries, const BF16* d_out, int lead) {
        if (!takes_part(lead)) return;
#pragma unroll
        for (int f = 0; f < kRowTiles; ++f) {
          const auto sees = [&](int row, int query) {
            return warp_row + 16 * f + row <= query + lead;
          };
          spread_garbage<kDim, Tiling::kQueries>(rows.dk[f], queries, lane, sees);
          spread_garbage<kDim, Tiling::kQueries>(rows.dv[f], d_out, lane, sees);
        }
      },
      [&](const BF16* queries, const BF16* d_out, const RowStatistics* of_tile, int lead) {
        if (!takes_part(lead)) return;
        rows.add(keys, values, warp_row, queries, d_out, of_tile, lane, scale_log2, lead,
                 warp_row + Tiling::kWarpRows - 1 > lead);
      });
  device::wait_copies<0>();  // of the keys, where nobody sees them

  const SpaceGradView grad = args.grads[item.space];
#pragma unroll
  for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + 16 * f + 8 * r + (lane >> 2);
      if (row >= item.rows) continue;
      if (item.slot == KeyItem::kWhole) {
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          const int column = 8 * n + (lane & 3) * 2;
          store_gradient(grad.dk, grad.is_f32 != 0, grad.adds != 0, item.begin + row, kv_head,
                         column, rows.dk[f][n][2 * r] * args.scale,
                         rows.dk[f][n][2 * r + 1] * args.scale);
          store_gradient(grad.dv, grad.is_f32 != 0, grad.adds != 0, item.begin + row, kv_head,
                         column, rows.dv[f][n][2 * r], rows.dv[f][n][2 * r + 1]);
        }
      } else {
        float* to = args.partial +
                    (static_cast<std::int64_t>(item.slot) * kv_heads + kv_head) * 2 * kRows * kDim +
                    row * kDim + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          to[8 * n] = rows.dk[f][n][2 * r] * args.scale;
          to[8 * n + 1] = rows.dk[f][n][2 * r + 1] * args.scale;
          to[kRows * kDim + 8 * n] = rows.dv[f][n][2 * r];
          to[kRows * kDim + 8 * n + 1] = rows.dv[f][n][2 * r + 1];
        }
      }
    }
  }
}

struct SlotSumArgs {
  const SpaceGradView* grads;
  const SlotSum* sums;
  const float* partial;  // as above
  int kv_heads;
};

inline constexpr int kSlotSumThreads = 128;

/// A block for each sum, key-value head and either of dK and dV.
template <int kDim, int kRows>
__global__ void __launch_bounds__(kSlotSumThreads)
    prefix_attention_slot_sum_kernel(const SlotSumArgs args) {
  const int block = static_cast<int>(blockIdx.x);
  const int which = block % 2, kv_head = block / 2 % args.kv_heads;
  const SlotSum sum = args.sums[block / 2 / args.kv_heads];
  const SpaceGradView grad = args.grads[sum.space];
  const float* first =
      args.partial +
      ((static_cast<std::int64_t>(sum.first_slot) * args.kv_heads + kv_head) * 2 + which) * kRows *
          kDim;
  const auto step = static_cast<std::int64_t>(args.kv_heads) * 2 * kRows * kDim;
  for (int i = static_cast<int>(threadIdx.x); i < sum.rows * kDim / 2; i += kSlotSumThreads) {
    float a = 0.0f, b = 0.0f;
    for (int s = 0; s < sum.slots; ++s) {
      a += first[s * step + 2 * i];
      b += first[s * step + 2 * i + 1];
    }
    store_gradient(which == 0 ? grad.dk : grad.dv, grad.is_f32 != 0, grad.adds != 0,
                   sum.begin + 2 * i / kDim, kv_head, 2 * i % kDim, a, b);
  }
}

}  // namespace coppice::cuda
