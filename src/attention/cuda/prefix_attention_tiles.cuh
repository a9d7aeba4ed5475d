#pragma once
// Tiles of bf16 rows in shared memory and what tensor cores do with them, as attention's kernels
// need it. Chunks of 16 bytes are swizzled so that eight rows of one column of chunks lie in
// different banks: loads of matrices have no conflicts.
//
// Accumulators are those of mma.m16n8k16: lane l holds rows l / 4 and l / 4 + 8, columns
// 2 (l % 4) + {0, 1} of each 8 columns.
#include <cstdint>

#include "attention/cuda/prefix_attention_views.hpp"
#include "device/async_copy.cuh"
#include "device/bf16.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"

namespace coppice::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// Element of chunk `chunk` of row `row` in a tile of rows of kDim.
template <int kDim>
__device__ __forceinline__ int tile_element(int row, int chunk) {
  static_assert(kDim % 32 == 0);
  if constexpr (kDim % 64 == 0) return row * kDim + ((chunk ^ (row & 7)) << 3);
  // A row is an odd number of half lines: rows two apart start in the same bank.
  return row * kDim + ((chunk ^ ((row >> 1) & 3)) << 3);
}

/// Calls f(row, chunk) for the chunks of a tile that are this thread's.
template <int kDim, int kRows, int kThreads, class F>
__device__ __forceinline__ void for_own_chunks(const F& f) {
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    f(i / kChunks, i % kChunks);
  }
}

/// Starts copying rows [begin, +valid) of a head into a tile of kRows; rows behind become zero.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void copy_rows(BF16* tile, const HeadRows<const BF16>& from, int head,
                                          int begin, int valid) {
  const BF16* source = from.data + begin * from.row_stride + head * from.head_stride;
  for_own_chunks<kDim, kRows, kThreads>([&](int row, int chunk) {
    const bool is_valid = row < valid;
    device::copy_async_16(tile + tile_element<kDim>(row, chunk),
                          source + (is_valid ? row : 0) * from.row_stride + chunk * 8, is_valid);
  });
}

/// The element 16 `steps` columns right of one in the first 16 columns. One instruction from what a
/// lane keeps, so that its addresses need not be kept too.
template <int kDim>
__device__ __forceinline__ int step_right(int element, int steps) {
  if constexpr (kDim % 64 == 0) return element ^ (16 * steps);
  return (element ^ (16 * (steps & 1))) + 32 * (steps >> 1);
}

/// A operand: 16 rows from `row` (a multiple of 16), 16 columns from 16 k.
template <int kDim>
__device__ __forceinline__ void load_a(std::uint32_t* a, const BF16* tile, int row, int k,
                                       int lane) {
  const int first = tile_element<kDim>(lane & 15, lane >> 4);
  device::load_matrix_x4(a, tile + row * kDim + step_right<kDim>(first, k));
}

/// Two B operands of a product with the tile transposed: 16 of its rows from `row` (a multiple of
/// 16) are the product's columns, 16 of its columns from 16 k the summed axis.
template <int kDim>
__device__ __forceinline__ void load_b(std::uint32_t* b, const BF16* tile, int row, int k,
                                       int lane) {
  const int first = tile_element<kDim>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  device::load_matrix_x4(b, tile + row * kDim + step_right<kDim>(first, k));
}

/// Two B operands of a product with the tile as it lies: 16 of its rows from 16 k are the summed
/// axis, 16 of its columns from 16 n the product's columns.
template <int kDim>
__device__ __forceinline__ void load_b_rows(std::uint32_t* b, const BF16* tile, int k, int n,
                                            int lane) {
  const int first = tile_element<kDim>(lane & 15, lane >> 4);
  device::load_matrix_x4_transposed(b, tile + 16 * k * kDim + step_right<kDim>(first, n));
}

/// Two neighbouring 8-column accumulators as one A operand of 16 columns, rounded to bf16.
__device__ __forceinline__ void pack_a(std::uint32_t* a, const float (*c)[4]) {
  a[0] = device::pack_bf16(c[0][0], c[0][1]);
  a[1] = device::pack_bf16(c[0][2], c[0][3]);
  a[2] = device::pack_bf16(c[1][0], c[1][1]);
  a[3] = device::pack_bf16(c[1][2], c[1][3]);
}

template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void set_zero(float (*x)[kColumnTiles][4]) {
#pragma unroll
  for (int f = 0; f < kRowTiles; ++f) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) x[f][n][0] = x[f][n][1] = x[f][n][2] = x[f][n][3] = 0.0f;
  }
}

/// scores[16 kRowTiles, kTileRows] = rows of `left` from `row` times the rows of `right`.
template <int kDim, int kTileRows, int kRowTiles>
__device__ __forceinline__ void multiply_rows(float (*scores)[kTileRows / 8][4], const BF16* left,
                                              int row, const BF16* right, int lane) {
  set_zero<kRowTiles, kTileRows / 8>(scores);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t a[kRowTiles][4], b[4];
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) load_a<kDim>(a[f], left, row + 16 * f, k, lane);
#pragma unroll
    for (int n = 0; n < kTileRows / 16; ++n) {
      load_b<kDim>(b, right, 16 * n, k, lane);
#pragma unroll
      for (int f = 0; f < kRowTiles; ++f) {
        device::mma_m16n8k16_bf16(scores[f][2 * n], a[f], b);
        device::mma_m16n8k16_bf16(scores[f][2 * n + 1], a[f], b + 2);
      }
    }
  }
}

/// result[16 kRowTiles, kDim] += left[16 kRowTiles, kTileRows], rounded to bf16, times the tile.
template <int kDim, int kTileRows, int kRowTiles>
__device__ __forceinline__ void multiply_add(float (*result)[kDim / 8][4],
                                             const float (*left)[kTileRows / 8][4],
                                             const BF16* tile, int lane) {
#pragma unroll
  for (int k = 0; k < kTileRows / 16; ++k) {
    std::uint32_t a[kRowTiles][4], b[4];
#pragma unroll
    for (int f = 0; f < kRowTiles; ++f) pack_a(a[f], left[f] + 2 * k);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      load_b_rows<kDim>(b, tile, k, n, lane);
#pragma unroll
      for (int f = 0; f < kRowTiles; ++f) {
        device::mma_m16n8k16_bf16(result[f][2 * n], a[f], b);
        device::mma_m16n8k16_bf16(result[f][2 * n + 1], a[f], b + 2);
      }
    }
  }
}

}  // namespace coppice::cuda
