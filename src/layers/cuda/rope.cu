// The rotation on a CUDA device: a block takes a token with all its heads, a thread a few pairs of
// one head, both halves of each pair.
#include "layers/rope.hpp"

#include "core/cuda/rows.cuh"
#include "core/cuda/upload.hpp"
#include "device/launch.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

struct Turn {
  const float *cos, *sin;         // [positions, pairs]
  const std::int32_t* positions;  // [T]
  BF16* x;                        // [T, heads, 2 pairs]
  std::int64_t row_stride, head_stride;
  int heads, pairs;
  float sign;  // 1 forward and -1 backward
};

template <int kCount>
__global__ void __launch_bounds__(kMostThreads) turn_kernel(Turn a) {
  const std::int64_t t = blockIdx.x, at = a.positions[t] * std::int64_t{a.pairs};
  BF16* row = a.x + t * a.row_stride;
  for_columns<kCount>(std::int64_t{a.heads} * a.pairs, [&](std::int64_t i) {
    const int head = static_cast<int>(i) / a.pairs, pair = static_cast<int>(i) % a.pairs;
    BF16* first = row + head * a.head_stride + pair;
    BF16* second = first + a.pairs;
    const auto cos = load_floats<kCount>(a.cos + at + pair);
    const auto sin = load_floats<kCount>(a.sin + at + pair);
    auto x = load_floats<kCount>(first), y = load_floats<kCount>(second);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float s = sin[k] * a.sign, turned = x[k] * cos[k] - y[k] * s;
      y[k] = x[k] * s + y[k] * cos[k];
      x[k] = turned;
    }
    store_floats<kCount>(first, x);
    store_floats<kCount>(second, y);
  });
}

}  // namespace

void rope(ExecContext& ctx, const RopeTable& table, std::span<const std::int32_t> positions,
          TensorView x, RopeDirection direction) {
  ScratchScope scratch(ctx.scratch);
  const auto heads = x.shape()[1], pairs = x.shape()[2] / 2;
  const Turn turn{.cos = table.cos().data<float>(),
                  .sin = table.sin().data<float>(),
                  .positions = upload(ctx, scratch, positions),
                  .x = x.data<BF16>(),
                  .row_stride = x.strides()[0],
                  .head_stride = x.strides()[1],
                  .heads = static_cast<int>(heads),
                  .pairs = static_cast<int>(pairs),
                  .sign = direction == RopeDirection::kForward ? 1.0f : -1.0f};
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(x.shape()[0], 1), threads_for(heads * pairs / pack)},
               turn_kernel<pack>, turn);
      },
      pairs, x, table.cos(), table.sin());
}

}  // namespace coppice::cuda
