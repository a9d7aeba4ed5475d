// The gated activation on a CUDA device: a block takes a row, a thread a few columns of gate and up
// at once. In place each element is read and written by the same thread.
#include "layers/swiglu.hpp"

#include "core/cuda/rows.cuh"
#include "device/launch.cuh"
#include "device/math.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

constexpr float kLog2E = 1.44269504f;

/// 1 / (1 + exp(-x)): 0 and 1 at the ends, NaN for NaN.
__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + device::fast_exp2(-kLog2E * x));
}

template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    forward_kernel(Rows<const BF16> gate_up, std::int64_t width, Rows<BF16> hidden) {
  const std::int64_t t = blockIdx.x;
  const BF16* gate = gate_up.at(t);
  const BF16* up = gate + width;
  for_columns<kCount>(width, [&](std::int64_t i) {
    auto values = load_floats<kCount>(gate + i);
    const auto ups = load_floats<kCount>(up + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = values[k] * sigmoid(values[k]) * ups[k];
    store_floats<kCount>(hidden.at(t) + i, values);
  });
}

template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    backward_kernel(Rows<const BF16> gate_up, Rows<const BF16> d_hidden, std::int64_t width,
                    Rows<BF16> d_gate_up) {
  const std::int64_t t = blockIdx.x;
  const BF16 *gate = gate_up.at(t), *up = gate + width, *d = d_hidden.at(t);
  BF16 *d_gate = d_gate_up.at(t), *d_up = d_gate + width;
  for_columns<kCount>(width, [&](std::int64_t i) {
    auto gates = load_floats<kCount>(gate + i), ups = load_floats<kCount>(up + i);
    const auto ds = load_floats<kCount>(d + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float g = gates[k], s = sigmoid(g);
      gates[k] = ds[k] * ups[k] * (s * (1.0f + g * (1.0f - s)));
      ups[k] = ds[k] * g * s;
    }
    store_floats<kCount>(d_gate + i, gates);
    store_floats<kCount>(d_up + i, ups);
  });
}

}  // namespace

void swiglu_forward(ExecContext& ctx, ConstTensorView gate_up, TensorView hidden) {
  const auto rows = hidden.shape()[0], width = hidden.shape()[1];
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(rows, 1), threads_for(width / pack)}, forward_kernel<pack>,
               rows_of<const BF16>(gate_up), width, rows_of<BF16>(hidden));
      },
      width, gate_up, hidden);
}

void swiglu_backward(ExecContext& ctx, ConstTensorView gate_up, ConstTensorView d_hidden,
                     TensorView d_gate_up) {
  const auto rows = d_hidden.shape()[0], width = d_hidden.shape()[1];
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(rows, 1), threads_for(width / pack)}, backward_kernel<pack>,
               rows_of<const BF16>(gate_up), rows_of<const BF16>(d_hidden), width,
               rows_of<BF16>(d_gate_up));
      },
      width, gate_up, d_hidden, d_gate_up);
}

}  // namespace coppice::cuda
