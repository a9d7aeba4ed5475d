// Between f32 and bf16 on a CUDA device.
#include "core/convert.hpp"

#include "core/cuda/rows.cuh"
#include "core/cuda/runtime.hpp"
#include "device/launch.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

template <int kCount, class From, class To>
__global__ void __launch_bounds__(kMostThreads)
    convert_kernel(const From* source, To* target, std::int64_t count) {
  const auto i = (std::int64_t{blockIdx.x} * kMostThreads + threadIdx.x) * kCount;
  if (i >= count) return;
  store_floats<kCount>(target + i, load_floats<kCount>(source + i));
}

template <class From, class To>
void convert_to(ExecContext& ctx, ConstTensorView source, TensorView target) {
  const auto count = source.numel();
  with_pack(
      [&](auto pack) {
        launch(ctx.stream, {blocks_for(count, kMostThreads * pack), kMostThreads},
               convert_kernel<pack, From, To>, source.data<From>(), target.data<To>(), count);
      },
      count, source.reshape({count}), target.reshape({count}));
}

}  // namespace

void convert(ExecContext& ctx, ConstTensorView source, TensorView target) {
  if (source.numel() == 0) return;
  if (source.dtype() == target.dtype()) {
    return copy(ctx.stream.state(), {.kind = CopyKind::kOnDevice,
                                     .to = target.bytes(),
                                     .from = source.bytes(),
                                     .bytes = source.numel() * size_of(source.dtype())});
  }
  if (source.dtype() == DType::kF32 && target.dtype() == DType::kBF16) {
    return convert_to<float, BF16>(ctx, source, target);
  }
  COPPICE_CHECK(source.dtype() == DType::kBF16 && target.dtype() == DType::kF32,
                "a CUDA device converts between f32 and bf16, not from {} to {}",
                name_of(source.dtype()), name_of(target.dtype()));
  convert_to<BF16, float>(ctx, source, target);
}

}  // namespace coppice::cuda
