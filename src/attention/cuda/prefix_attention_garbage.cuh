#pragma once
// Garbage stays in its row. A product over a tile reads rows that the mask hides with weight 0, and
// 0 times NaN is NaN. So before a tile at a mask's edge is multiplied, its block looks for what is
// not finite; if there is any, the results of the rows that do see it become NaN, and the tile is
// multiplied with zeros in its place. Tiles without a hidden row skip all of this.
#include <cmath>

#include "attention/cuda/prefix_attention_tiles.cuh"
#include "device/pack.cuh"
#include "device/warp.cuh"

namespace coppice::cuda {

/// Of the two bf16 in a word: 0xffff where one is infinite or NaN.
__device__ __forceinline__ std::uint32_t non_finite_halves(std::uint32_t pair) {
  return ((pair & 0x7f80u) == 0x7f80u ? 0xffffu : 0u) |
         ((pair & 0x7f800000u) == 0x7f800000u ? 0xffff0000u : 0u);
}

/// Whether a chunk that this thread copied into the tile (and waited for) is not finite.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ bool own_chunks_hold_garbage(const BF16* tile) {
  std::uint32_t found = 0;
  for_own_chunks<kDim, kRows, kThreads>([&](int row, int chunk) {
    const auto words = device::load_pack<4>(
        reinterpret_cast<const std::uint32_t*>(tile + tile_element<kDim>(row, chunk)));
    // An exponent of all ones carries into the sign's place.
    for (int i = 0; i < 4; ++i) found |= ((words[i] & 0x7f807f80u) + 0x00800080u) & 0x80008000u;
  });
  return found != 0;
}

/// Sets what is not finite in this thread's chunks to zero.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void clear_garbage_of_own_chunks(BF16* tile) {
  for_own_chunks<kDim, kRows, kThreads>([&](int row, int chunk) {
    auto* words = reinterpret_cast<std::uint32_t*>(tile + tile_element<kDim>(row, chunk));
    for (int i = 0; i < 4; ++i) words[i] &= ~non_finite_halves(words[i]);
  });
}

/// NaN for each element of result[16, kDim] whose row sees a tile row that is not finite in its
/// column: the count of such rows, as a product. `sees(row, k)`: whether result row `row` of these
/// 16 sees row k of the tile.
template <int kDim, int kTileRows, class Sees>
__device__ __forceinline__ void spread_garbage(float (*result)[4], const BF16* tile, int lane,
                                               const Sees& sees) {
#pragma unroll
  for (int n = 0; n < kDim / 16; ++n) {
    float count[2][4] = {};
#pragma unroll 1
    for (int k = 0; k < kTileRows / 16; ++k) {
      float seen[2][4];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          seen[c][e] = sees((lane >> 2) + (e >> 1) * 8, 16 * k + 8 * c + (lane & 3) * 2 + (e & 1))
                           ? 1.0f
                           : 0.0f;
        }
      }
      std::uint32_t a[4], b[4];
      pack_a(a, seen);
      load_b_rows<kDim>(b, tile, k, n, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = non_finite_halves(b[i]) & 0x3f803f80u;  // 1 where not
      device::mma_m16n8k16_bf16(count[0], a, b);
      device::mma_m16n8k16_bf16(count[1], a, b + 2);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (count[c][e] > 0.0f) result[2 * n + c][e] = NAN;
      }
    }
  }
}

/// The block's barrier, and whether any of its threads brought `mine`. `flags` has room for a word
/// per warp and may be used again after the next barrier.
template <int kWarps>
__device__ __forceinline__ bool barrier_any(bool mine, std::uint32_t* flags) {
  const bool any = device::warp_max(mine ? 1.0f : 0.0f) > 0.0f;
  if (threadIdx.x % 32 == 0) flags[threadIdx.x / 32] = any ? 1u : 0u;
  __syncthreads();
  std::uint32_t found = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) found |= flags[i];
  return found != 0;
}

}  // namespace coppice::cuda
