#pragma once
// How a block that owns query rows walks over the keys that they see: tile after tile of keys and
// values, the next one on its way to shared memory while the current one is at work.
#include "attention/cuda/prefix_attention_garbage.cuh"

namespace coppice::cuda {

/// How the work on query rows of one head dim is cut. Each warp holds 16 kRowTiles rows; with two
/// tiles of rows, an operand loaded from keys or values serves twice. Scores are held for kStep
/// keys of a tile at a time.
template <int kHeadDim, int kTileKeys, int kStepKeys, int kWarpCount, int kWarpRowTiles>
struct QueryTiling {
  static constexpr int kDim = kHeadDim, kKeys = kTileKeys, kStep = kStepKeys, kWarps = kWarpCount;
  static constexpr int kRowTiles = kWarpRowTiles, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarpRows * kWarps;
  static constexpr int kQueryElements = kRows * kDim, kKeyElements = kKeys * kDim;
  static constexpr int kFlagBytes = 2 * kWarps * 4;
  static_assert(kRows % kKeys == 0, "a tile's own square must begin at a tile of keys");
};

/// Which tile a walk's caller multiplies with weights that may be zero because a row is hidden.
enum class Weighted { kKeys, kValues };

template <class Tiling>
struct KeyWalk {
  static constexpr int kDim = Tiling::kDim, kKeys = Tiling::kKeys, kThreads = Tiling::kThreads;
  static constexpr int kElements = Tiling::kKeyElements;

  const SpaceView* spaces;
  const KeyPiece* pieces;
  int count, kv_head;
  BF16* tiles;           // two times keys and values
  std::uint32_t* flags;  // two times one per warp
  int next_piece = 0, next_at = 0, next_buffer = 0;

  /// Calls f(keys, values, piece, at) for each tile of keys, `at` being its first key's place in
  /// the piece; before that, where hidden rows of the weighted tile hold garbage, spread(tile,
  /// piece, at), behind which the tile holds zeros in the garbage's place. Copies of the caller
  /// that it has not yet committed land with the first tile.
  template <Weighted kWeighted, class Spread, class F>
  __device__ __forceinline__ void run(const Spread& spread, const F& f) {
    copy_next();
    for (int p = 0; p < count; ++p) {
      const KeyPiece piece = pieces[p];
      for (int at = 0; at < piece.rows; at += kKeys) {
        const int buffer = next_buffer ^ 1;
        BF16* keys = tiles + buffer * 2 * kElements;
        BF16* values = keys + kElements;
        BF16* weighted = kWeighted == Weighted::kKeys ? keys : values;
        device::wait_copies<0>();
        // Behind the barrier the tile is there for all threads, and all are done with the last one.
        bool garbage = false;
        if (piece.causal != 0) {
          garbage =
              barrier_any<Tiling::kWarps>(own_chunks_hold_garbage<kDim, kKeys, kThreads>(weighted),
                                          flags + buffer * Tiling::kWarps);
        } else {
          __syncthreads();
        }
        copy_next();
        if (garbage) {
          spread(weighted, piece, at);
          __syncthreads();
          clear_garbage_of_own_chunks<kDim, kKeys, kThreads>(weighted);
          __syncthreads();
        }
        f(keys, values, piece, at);
      }
    }
  }

  __device__ __forceinline__ void copy_next() {
    if (next_piece < count) {
      const KeyPiece piece = pieces[next_piece];
      const SpaceView space = spaces[piece.space];
      BF16* keys = tiles + next_buffer * 2 * kElements;
      const int row = piece.begin + next_at, rows = piece.rows - next_at;
      copy_rows<kDim, kKeys, kThreads>(keys, space.k, kv_head, row, rows);
      copy_rows<kDim, kKeys, kThreads>(keys + kElements, space.v, kv_head, row, rows);
      next_at += kKeys;
      if (next_at >= piece.rows) {
        next_at = 0;
        ++next_piece;
      }
    }
    next_buffer ^= 1;
    device::commit_copies();
  }
};

/// Last key of a tile that a warp's row sees, counted from the tile's first; negative if none.
struct KeyBound {
  int first_row, last_key, at;
  bool causal;

  __device__ __forceinline__ KeyBound(const KeyPiece& piece, int warp_row, int tile_at)
      : first_row(warp_row), last_key(piece.rows - 1), at(tile_at), causal(piece.causal != 0) {}
  __device__ __forceinline__ int operator()(int row) const {
    return (causal ? first_row + row : last_key) - at;
  }
};

}  // namespace coppice::cuda
