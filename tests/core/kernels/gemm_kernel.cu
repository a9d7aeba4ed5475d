// Tiles of 64 x 64 x 32, four warps as 2 x 2, each with 32 x 32 of the result.
#include "core/kernels/gemm_kernel.hpp"

#include "device/async_copy.cuh"
#include "device/mma.cuh"

namespace coppice::test {
namespace {

using namespace device;

constexpr int kTile = 64, kDepth = 32, kThreads = 128, kChunk = 8;
constexpr int kChunksPerRow = kDepth / kChunk;
constexpr int kStageElements = kTile * kDepth;
constexpr int kSharedBytes = 4 * kStageElements * static_cast<int>(sizeof(BF16));

// Where chunk c of row r lies: permuted, so that eight rows of a chunk are in different banks.
__device__ __forceinline__ int place(int r, int c) {
  return r * kDepth + (c ^ (r / 2 % kChunksPerRow)) * kChunk;
}

// Rows [row, row + 64), columns [column, column + 32) of a [rows, k] matrix; zeros beyond it.
__device__ __forceinline__ void copy_tile(BF16* tile, const BF16* matrix, int rows, int k, int row,
                                          int column) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kChunksPerRow; i += kThreads) {
    const int r = i / kChunksPerRow, c = i % kChunksPerRow;
    const bool inside = row + r < rows && column + c * kChunk < k;
    const BF16* source = matrix;
    if (inside) source += static_cast<std::int64_t>(row + r) * k + column + c * kChunk;
    copy_async_16(tile + place(r, c), source, inside);
  }
}

template <GemmMutation kMutation>
__global__ void __launch_bounds__(kThreads) gemm_kernel(GemmArguments g) {
  BF16* tiles_a = reinterpret_cast<BF16*>(shared_memory());  // two stages
  BF16* tiles_b = tiles_a + 2 * kStageElements;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.y) * kTile,
            column = static_cast<int>(blockIdx.x) * kTile;
  const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
  const int steps = (g.k + kDepth - 1) / kDepth;

  const auto copy_stage = [&](int step) {
    const int stage = step % 2 * kStageElements;
    copy_tile(tiles_a + stage, g.a, g.m, g.k, row, step * kDepth);
    copy_tile(tiles_b + stage, g.b, g.n, g.k, column, step * kDepth);
    commit_copies();
  };

  float sums[2][4][4] = {};
  copy_stage(0);
  for (int step = 0; step < steps; ++step) {
    const bool more = step + 1 < steps;
    if (more) copy_stage(step + 1);
    if (!more) {
      wait_copies<0>();
    } else if (kMutation != GemmMutation::kNoWait) {
      wait_copies<1>();
    }
    if (kMutation != GemmMutation::kNoBarrierBeforeUse) __syncthreads();
    const BF16* a = tiles_a + step % 2 * kStageElements;
    const BF16* b = tiles_b + step % 2 * kStageElements;
    for (int half = 0; half < 2; ++half) {
      std::uint32_t part_a[2][4], part_b[2][4];
      for (int i = 0; i < 2; ++i) {
        const int r = warp_row + i * 16 + lane % 16;
        load_matrix_x4(part_a[i], a + place(r, half * 2 + lane / 16));
      }
      for (int j = 0; j < 2; ++j) {
        const int r = warp_column + j * 16 + lane % 8 + lane / 16 * 8;
        load_matrix_x4(part_b[j], b + place(r, half * 2 + lane / 8 % 2));
      }
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
          mma_m16n8k16_bf16(sums[i][j], part_a[i], part_b[j / 2] + j % 2 * 2);
        }
      }
    }
    if (kMutation != GemmMutation::kNoBarrierAfterUse) __syncthreads();
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int e = 0; e < 4; ++e) {
        const int r = row + warp_row + i * 16 + lane / 4 + e / 2 * 8;
        const int c = column + warp_column + j * 8 + lane % 4 * 2 + e % 2;
        if (r < g.m && c < g.n) g.c[static_cast<std::int64_t>(r) * g.n + c] = sums[i][j][e];
      }
    }
  }
}

template <GemmMutation kMutation>
void launch_as(Stream& stream, const GemmArguments& g) {
  const auto tiles = [](int extent) { return static_cast<unsigned>((extent + kTile - 1) / kTile); };
  launch(stream, {dim3(tiles(g.n), tiles(g.m)), dim3(kThreads), kSharedBytes},
         gemm_kernel<kMutation>, g);
}

}  // namespace

void launch_gemm(Stream& stream, const GemmArguments& arguments, GemmMutation mutation) {
  switch (mutation) {
    case GemmMutation::kNone:
      return launch_as<GemmMutation::kNone>(stream, arguments);
    case GemmMutation::kNoWait:
      return launch_as<GemmMutation::kNoWait>(stream, arguments);
    case GemmMutation::kNoBarrierBeforeUse:
      return launch_as<GemmMutation::kNoBarrierBeforeUse>(stream, arguments);
    case GemmMutation::kNoBarrierAfterUse:
      return launch_as<GemmMutation::kNoBarrierAfterUse>(stream, arguments);
  }
}

}  // namespace coppice::test
