#include "core/copy.hpp"

#include <cstring>

#include "core/build_config.hpp"
#include "core/cuda/runtime.hpp"

namespace coppice {
namespace {

// A tensor as runs of bytes that lie `stride` apart.
struct Runs {
  std::int64_t count, bytes, stride;
};

template <class View>
Runs runs_of(const View& view, bool whole) {
  const auto size = size_of(view.dtype());
  if (whole) return {1, view.numel() * size, 0};
  const auto rows = view.shape()[0];
  COPPICE_CHECK(rows == 0 || view.rows(0, 1).is_contiguous(),
                "a row of {} with strides {} is not contiguous", view.shape(), view.strides());
  return {rows, rows == 0 ? 0 : view.numel() / rows * size, view.strides()[0] * size};
}

bool is_cuda(const Device& device) { return device.kind == DeviceKind::kCuda; }

}  // namespace

void copy(Stream& stream, ConstTensorView from, TensorView to) {
  COPPICE_CHECK(from.shape() == to.shape() && from.dtype() == to.dtype(), "{} {} copied into {} {}",
                name_of(from.dtype()), from.shape(), name_of(to.dtype()), to.shape());
  for (const Device& device : {from.device(), to.device()}) {
    COPPICE_CHECK(!is_cuda(device) || device == stream.device(), "a copy of {} on a stream of {}",
                  device.to_string(), stream.device().to_string());
  }
  if (to.numel() == 0) return;
  const bool whole = from.is_contiguous() && to.is_contiguous();
  const Runs source = runs_of(from, whole), target = runs_of(to, whole);
  if constexpr (build::kWithCuda) {
    if (is_cuda(from.device()) || is_cuda(to.device())) {
      const auto kind = !is_cuda(from.device()) ? cuda::CopyKind::kToDevice
                        : is_cuda(to.device())  ? cuda::CopyKind::kOnDevice
                                                : cuda::CopyKind::kToHost;
      cuda::copy(stream.state(), {.kind = kind,
                                  .to = to.bytes(),
                                  .from = from.bytes(),
                                  .bytes = source.bytes,
                                  .rows = source.count,
                                  .to_stride = target.stride,
                                  .from_stride = source.stride});
      return;
    }
  }
  for (std::int64_t run = 0; run < source.count; ++run) {
    std::memcpy(to.bytes() + run * target.stride, from.bytes() + run * source.stride,
                static_cast<std::size_t>(source.bytes));
  }
}

void set_zero(Stream& stream, TensorView tensor) {
  if (tensor.numel() == 0) return;
  const Runs runs = runs_of(tensor, tensor.is_contiguous());
  if constexpr (build::kWithCuda) {
    if (is_cuda(tensor.device())) {
      cuda::fill(stream.state(), tensor.bytes(), 0, runs.bytes, runs.count, runs.stride);
      return;
    }
  }
  for (std::int64_t run = 0; run < runs.count; ++run) {
    std::memset(tensor.bytes() + run * runs.stride, 0, static_cast<std::size_t>(runs.bytes));
  }
}

void copy(Memory& memory, ConstTensorView from, TensorView to) {
  Stream inline_stream{Device{}};
  copy(memory.order() != nullptr ? *memory.order() : inline_stream, from, to);
}

void set_zero(Memory& memory, TensorView tensor) {
  Stream inline_stream{Device{}};
  set_zero(memory.order() != nullptr ? *memory.order() : inline_stream, tensor);
}

}  // namespace coppice
