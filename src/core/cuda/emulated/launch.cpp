// Where a launch meets its stream.
#include <fmt/format.h>

#include "core/cuda/emulated/block.hpp"
#include "core/cuda/emulated/grid.hpp"
#include "core/cuda/emulated/stream.hpp"

namespace coppice::emulated {

void enqueue_kernel(Stream& stream, const LaunchShape& shape, KernelCall call) {
  check_shape(shape);
  enqueue(stream, fmt::format("kernel launched at {}", describe(shape.place)),
          [shape, call = std::move(call)] { run_grid(shape, call); });
}

}  // namespace coppice::emulated
