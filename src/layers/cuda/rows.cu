// The row helpers on a CUDA device. All of them wait for memory: a block takes a row and moves it
// 16 bytes a thread where rows are aligned to that.
#include "layers/rows.hpp"

#include <vector>

#include "core/cuda/rows.cuh"
#include "core/cuda/upload.hpp"
#include "device/launch.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    add_kernel(Rows<const BF16> a, Rows<const BF16> b, std::int64_t width, Rows<BF16> sum) {
  const std::int64_t t = blockIdx.x;
  for_columns<kCount>(width, [&](std::int64_t i) {
    auto values = load_floats<kCount>(a.at(t) + i);
    const auto others = load_floats<kCount>(b.at(t) + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] += others[k];
    store_floats<kCount>(sum.at(t) + i, values);
  });
}

// A block takes kWarps x 32 columns' worth of 32 and every eighth row for each warp; the warps'
// sums are added in order. f32 within a few rows, double between, as many rows may come.
constexpr int kColumns = 32;
constexpr int kWarps = kMostThreads / kColumns;
constexpr int kRowsInFloat = 16;

__global__ void __launch_bounds__(kMostThreads)
    bias_backward_kernel(Rows<const BF16> dy, std::int64_t rows, std::int64_t width, float* dbias) {
  auto* sums = reinterpret_cast<double*>(device::shared_memory());  // [kWarps][kColumns]
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int warp = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + lane;
  double sum = 0;
  if (column < width) {
    for (std::int64_t first = warp; first < rows; first += kWarps * kRowsInFloat) {
      float part = 0;
#pragma unroll  // that many loads on their way at once
      for (int i = 0; i < kRowsInFloat; ++i) {
        const auto t = first + std::int64_t{i} * kWarps;
        if (t < rows) part += device::bf16_to_float(dy.at(t)[column]);
      }
      sum += static_cast<double>(part);
    }
  }
  sums[warp * kColumns + lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int k = 1; k < kWarps; ++k) sum += sums[k * kColumns + lane];
  dbias[column] += static_cast<float>(sum);
}

// target[t] = source[source_of[t]], or 0 where that is negative.
template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    pick_kernel(Rows<const BF16> source, const std::int64_t* source_of, std::int64_t width,
                Rows<BF16> target) {
  const std::int64_t t = blockIdx.x, from = source_of[t];
  for_columns<kCount>(width, [&](std::int64_t i) {
    device::Pack<BF16, kCount> values{};
    if (from >= 0) values = device::load_pack<kCount>(source.at(from) + i);
    device::store_pack(target.at(t) + i, values);
  });
}

template <int kCount, class T>
__global__ void __launch_bounds__(kMostThreads)
    add_to_rows_kernel(Rows<const T> d_picked, const std::int64_t* rows, std::int64_t width,
                       Rows<BF16> dx) {
  const std::int64_t from = blockIdx.x, to = rows[from];
  for_columns<kCount>(width, [&](std::int64_t i) {
    auto values = load_floats<kCount>(dx.at(to) + i);
    const auto others = load_floats<kCount>(d_picked.at(from) + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] += others[k];
    store_floats<kCount>(dx.at(to) + i, values);
  });
}

void add(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum) {
  const auto rows = a.shape()[0], width = a.shape()[1];
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(rows, 1), threads_for(width / pack)}, add_kernel<pack>,
               rows_of<const BF16>(a), rows_of<const BF16>(b), width, rows_of<BF16>(sum));
      },
      width, a, b, sum);
}

// target's rows, each from the row of source that source_of says.
void pick(ExecContext& ctx, ConstTensorView source, std::span<const std::int64_t> source_of,
          TensorView target) {
  ScratchScope scratch(ctx.scratch);
  const auto width = target.shape()[1];
  const std::int64_t* places = upload(ctx, scratch, source_of);
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(target.shape()[0], 1), threads_for(width / pack)},
               pick_kernel<pack>, rows_of<const BF16>(source), places, width,
               rows_of<BF16>(target));
      },
      width, source, target);
}

template <class T>
void add_to(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
            TensorView dx) {
  ScratchScope scratch(ctx.scratch);
  const auto width = dx.shape()[1];
  const std::int64_t* places = upload(ctx, scratch, rows);
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(std::ssize(rows), 1), threads_for(width / pack)},
               add_to_rows_kernel<pack, T>, rows_of<const T>(d_picked), places, width,
               rows_of<BF16>(dx));
      },
      width, d_picked, dx);
}

}  // namespace

void add_rows(ExecContext& ctx, ConstTensorView a, ConstTensorView b, TensorView sum) {
  add(ctx, a, b, sum);
}

// The bias as a matrix whose rows all lie at the same place.
void add_bias(ExecContext& ctx, ConstTensorView bias, TensorView y) {
  add(ctx, y, ConstTensorView(bias.bytes(), bias.dtype(), y.shape(), Shape({0, 1}), bias.device()),
      y);
}

void bias_backward(ExecContext& ctx, ConstTensorView dy, TensorView dbias) {
  const auto rows = dy.shape()[0], width = dy.shape()[1];
  launch(ctx.stream,
         {blocks_for(width, kColumns), kMostThreads, kMostThreads * std::int64_t{sizeof(double)}},
         bias_backward_kernel, rows_of<const BF16>(dy), rows, width, dbias.data<float>());
}

void gather_rows(ExecContext& ctx, ConstTensorView x, std::span<const std::int64_t> rows,
                 TensorView picked) {
  pick(ctx, x, rows, picked);
}

void scatter_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                  TensorView dx) {
  std::vector<std::int64_t> source_of(static_cast<std::size_t>(dx.shape()[0]), -1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    source_of[static_cast<std::size_t>(rows[i])] = static_cast<std::int64_t>(i);
  }
  pick(ctx, d_picked, std::span<const std::int64_t>(source_of), dx);
}

void add_to_rows(ExecContext& ctx, ConstTensorView d_picked, std::span<const std::int64_t> rows,
                 TensorView dx) {
  if (d_picked.dtype() == DType::kF32) return add_to<float>(ctx, d_picked, rows, dx);
  add_to<BF16>(ctx, d_picked, rows, dx);
}

}  // namespace coppice::cuda
