// Squares and sums in double, in blocks of fixed size that are summed in order, so that the number
// does not depend on the device. The host waits for it: it decides with it.
#include "optim/grad_norm.hpp"

#include "core/cuda/rows.cuh"
#include "core/cuda/runtime.hpp"
#include "device/block.cuh"
#include "device/launch.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

constexpr std::int64_t kBlock = 1 << 14;
constexpr int kWarps = kMostThreads / device::kWarpSize;

template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    squares_kernel(const float* x, std::int64_t count, double* sums) {
  auto* shared = reinterpret_cast<double*>(device::shared_memory());  // [kWarps]
  const std::int64_t begin = std::int64_t{blockIdx.x} * kBlock;
  const float* block = x + begin;
  const auto left = count - begin;
  double sum = 0;
  for_columns<kCount>(left < kBlock ? left : kBlock, [&](std::int64_t i) {
    const auto values = load_floats<kCount>(block + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto value = static_cast<double>(values[k]);
      sum += value * value;
    }
  });
  sum = device::block_sum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

double sum_of_squares(ExecContext& ctx, std::span<const ConstTensorView> runs) {
  std::int64_t blocks = 0;
  for (const ConstTensorView& run : runs) blocks += blocks_for(run.numel(), kBlock);
  if (blocks == 0) return 0;
  ScratchScope scratch(ctx.scratch);
  const TensorView sums = scratch.lease(DType::kF64, {blocks});
  double* next = sums.data<double>();
  for (const ConstTensorView& run : runs) {
    const auto count = run.numel();
    with_pack(
        [&](auto pack) {
          launch(ctx.stream,
                 {blocks_for(count, kBlock), kMostThreads, kWarps * std::int64_t{sizeof(double)}},
                 squares_kernel<pack>, run.data<float>(), count, next);
        },
        count, run.reshape({count}));
    next += blocks_for(count, kBlock);
  }
  std::vector<double> on_host(static_cast<std::size_t>(blocks));
  copy(ctx.stream.state(), {.kind = CopyKind::kToHost,
                            .to = on_host.data(),
                            .from = sums.bytes(),
                            .bytes = blocks * size_of(DType::kF64)});
  double sum = 0;
  for (const double part : on_host) sum += part;
  return sum;
}

}  // namespace coppice::cuda
