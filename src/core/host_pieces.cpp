#include "core/host_pieces.hpp"

#include <utility>

#include "core/build_config.hpp"
#include "core/copy.hpp"
#include "core/cuda/runtime.hpp"

namespace coppice {
namespace {

bool is_host(const Device& device) { return device.kind == DeviceKind::kCpu; }

void check_stream(const Stream* stream, const Device& device) {
  COPPICE_CHECK(stream != nullptr && stream->device() == device,
                "elements on {} are reached through a stream of it", device.to_string());
}

template <class View>
View run_of(View tensor, std::int64_t begin, std::int64_t count) {
  COPPICE_CHECK(tensor.is_contiguous() && begin >= 0 && begin + count <= tensor.numel(),
                "elements {} to {} of {} with strides {}", begin, begin + count, tensor.shape(),
                tensor.strides());
  return View(tensor.bytes() + begin * size_of(tensor.dtype()), tensor.dtype(), Shape({count}),
              tensor.device());
}

}  // namespace

HostPieces::~HostPieces() {
  if constexpr (build::kWithCuda) {
    if (piece_ != nullptr) cuda::free_pinned(piece_);
  }
}

std::byte* HostPieces::pinned(std::int64_t bytes) {
  if constexpr (build::kWithCuda) {
    if (bytes > bytes_) {
      if (piece_ != nullptr) cuda::free_pinned(std::exchange(piece_, nullptr));
      piece_ = cuda::allocate_pinned(bytes);
      bytes_ = bytes;
    }
  }
  return piece_;
}

const std::byte* HostPieces::fetch(Stream* stream, ConstTensorView tensor, std::int64_t begin,
                                   std::int64_t count) {
  const ConstTensorView run = run_of(tensor, begin, count);
  if (is_host(tensor.device()) || count == 0) return run.bytes();
  check_stream(stream, tensor.device());
  const TensorView host(pinned(count * size_of(tensor.dtype())), tensor.dtype(), run.shape());
  copy(*stream, run, host);
  stream->synchronize();  // a copy to pinned memory is only enqueued
  return host.bytes();
}

std::byte* HostPieces::room(TensorView tensor, std::int64_t begin, std::int64_t count) {
  const TensorView run = run_of(tensor, begin, count);
  if (is_host(tensor.device()) || count == 0) return run.bytes();
  return pinned(count * size_of(tensor.dtype()));
}

void HostPieces::put(Stream* stream, TensorView tensor, std::int64_t begin, std::int64_t count) {
  if (is_host(tensor.device()) || count == 0) return;
  check_stream(stream, tensor.device());
  const TensorView run = run_of(tensor, begin, count);
  copy(*stream, ConstTensorView(piece_, tensor.dtype(), run.shape()), run);
  stream->synchronize();  // the piece is filled anew next
}

}  // namespace coppice
