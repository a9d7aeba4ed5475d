// The embedding on a CUDA device. Backward: the host sorts the rows by token, and each token's row
// of the gradient has one owner, who adds the token's rows in their order; repeated tokens need no
// atomics.
#include "layers/vocab_parallel_embedding.hpp"

#include <algorithm>
#include <vector>

#include "core/cuda/rows.cuh"
#include "core/cuda/upload.hpp"
#include "device/launch.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    forward_kernel(Rows<const BF16> weight, const std::int32_t* token_ids, std::int64_t begin,
                   std::int64_t size, std::int64_t width, Rows<BF16> y) {
  const std::int64_t t = blockIdx.x, row = token_ids[t] - begin;
  const bool here = row >= 0 && row < size;
  for_columns<kCount>(width, [&](std::int64_t i) {
    device::Pack<BF16, kCount> values{};
    if (here) values = device::load_pack<kCount>(weight.at(row) + i);
    device::store_pack(y.at(t) + i, values);
  });
}

/// Rows sorted[begin .. end) of dy have the token whose gradient is row `row` of dweight.
struct TokenRun {
  std::int32_t row, begin, end;
};

// Threads of a block, which takes a run and as many columns; a common token has many rows, so that
// its columns are best spread over many blocks.
constexpr int kRunThreads = 64;

template <int kCount>
__global__ void __launch_bounds__(kRunThreads)
    backward_kernel(Rows<const BF16> dy, const TokenRun* runs, const std::int32_t* sorted,
                    std::int64_t width, Rows<float> dweight) {
  const TokenRun run = runs[blockIdx.x];
  const auto i = (std::int64_t{blockIdx.y} * kRunThreads + threadIdx.x) * kCount;
  if (i >= width) return;
  float* to = dweight.at(run.row) + i;
  auto sums = load_floats<kCount>(to);
#pragma unroll 4
  for (std::int32_t r = run.begin; r < run.end; ++r) {
    const auto values = load_floats<kCount>(dy.at(sorted[r]) + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += values[k];
  }
  store_floats<kCount>(to, sums);
}

}  // namespace

void embedding_forward(ExecContext& ctx, ConstTensorView weight, const VocabShard& shard,
                       std::span<const std::int32_t> token_ids, TensorView y) {
  ScratchScope scratch(ctx.scratch);
  const auto width = y.shape()[1];
  const std::int32_t* ids = upload(ctx, scratch, token_ids);
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(y.shape()[0], 1), threads_for(width / pack)},
               forward_kernel<pack>, rows_of<const BF16>(weight), ids, shard.begin, shard.size,
               width, rows_of<BF16>(y));
      },
      width, weight, y);
}

void embedding_backward(ExecContext& ctx, const VocabShard& shard,
                        std::span<const std::int32_t> token_ids, ConstTensorView dy,
                        TensorView dweight) {
  std::vector<std::int32_t> sorted;
  for (std::int32_t t = 0; t < std::ssize(token_ids); ++t) {
    if (shard.holds(token_ids[static_cast<std::size_t>(t)])) sorted.push_back(t);
  }
  const auto token_of = [&](std::int32_t t) { return token_ids[static_cast<std::size_t>(t)]; };
  std::ranges::stable_sort(sorted, {}, token_of);
  std::vector<TokenRun> runs;
  for (std::int32_t i = 0; i < std::ssize(sorted); ++i) {
    const auto row =
        static_cast<std::int32_t>(token_of(sorted[static_cast<std::size_t>(i)]) - shard.begin);
    if (runs.empty() || runs.back().row != row) runs.push_back({row, i, i});
    runs.back().end = i + 1;
  }
  ScratchScope scratch(ctx.scratch);
  const auto width = dweight.shape()[1];
  const TokenRun* device_runs = upload(ctx, scratch, std::span(runs));
  const std::int32_t* device_rows = upload(ctx, scratch, std::span(sorted));
  with_pack(
      [&](auto pack) {
        const dim3 grid(blocks_for(std::ssize(runs), 1), blocks_for(width, kRunThreads * pack));
        launch(ctx.stream, {grid, kRunThreads}, backward_kernel<pack>, rows_of<const BF16>(dy),
               device_runs, device_rows, width, rows_of<float>(dweight));
      },
      width, dy, dweight);
}

}  // namespace coppice::cuda
