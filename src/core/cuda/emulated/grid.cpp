#include "core/cuda/emulated/grid.hpp"

#include <fmt/format.h>

#include <random>
#include <utility>

#include "core/cuda/emulated/block.hpp"
#include "core/error.hpp"

namespace coppice::emulated {
namespace {

constexpr std::uint64_t kMaxThreads = 1024;
constexpr std::uint64_t kMaxGridX = (1u << 31) - 1, kMaxGridYZ = 65535;

}  // namespace

void check_shape(const LaunchShape& shape) {
  const auto threads = shape.block.count();
  const std::string place = fmt::format("kernel launched at {}", describe(shape.place));
  if (threads == 0 || threads > kMaxThreads || threads % kLanes != 0) {
    throw DeviceError(
        fmt::format("{}: {} threads in a block (a block has whole warps of 32, 1024 "
                    "threads at most). Change the block's shape.",
                    place, threads));
  }
  if (shape.grid.x > kMaxGridX || shape.grid.y > kMaxGridYZ || shape.grid.z > kMaxGridYZ) {
    throw DeviceError(
        fmt::format("{}: a grid of {} x {} x {} (the device has 2^31 - 1 x 65535 x "
                    "65535). Put the long axis first, or let blocks take several parts.",
                    place, shape.grid.x, shape.grid.y, shape.grid.z));
  }
  if (shape.shared_bytes < 0 || shape.shared_bytes > gpu().options.shared_limit) {
    throw DeviceError(
        fmt::format("{}: {} bytes of shared memory (the device has {} for a block). Use "
                    "smaller tiles.",
                    place, shape.shared_bytes, gpu().options.shared_limit));
  }
}

void run_grid(const LaunchShape& shape, const KernelCall& call) {
  check_shape(shape);
  Gpu& device = gpu();
  ++device.statistics.kernels;
  const auto blocks = shape.grid.count();
  std::vector<std::uint64_t> order(blocks);
  for (std::uint64_t i = 0; i < blocks; ++i) order[i] = i;
  if (device.options.schedule == Schedule::kRandom) {
    std::mt19937_64 random(device.options.seed);
    for (auto i = blocks; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  Block block(device, shape, call, static_cast<std::uint32_t>(device.statistics.kernels));
  for (const auto index : order) block.run(index);
}

}  // namespace coppice::emulated
