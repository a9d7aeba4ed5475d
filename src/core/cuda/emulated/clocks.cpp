#include "core/cuda/emulated/clocks.hpp"

#include <algorithm>

namespace coppice::emulated {

void Clocks::reset(int warps) {
  warps_ = warps;
  for (std::size_t i = 0; i < kMaxWarps; ++i) {
    clock_[i] = {};
    clock_[i].seen[i] = 1;  // 0 means: did not happen
  }
}

void Clocks::meet(std::span<const int> threads) {
  std::array<bool, kMaxWarps> takes_part{};
  for (const int thread : threads) takes_part[static_cast<std::size_t>(thread / kLanes)] = true;
  std::array<std::uint32_t, kMaxWarps> latest{};
  for (std::size_t i = 0; i < kMaxWarps; ++i) {
    if (!takes_part[i]) continue;
    for (std::size_t k = 0; k < kMaxWarps; ++k) {
      latest[k] = std::max(latest[k], clock_[i].seen[k]);
    }
  }
  for (std::size_t i = 0; i < kMaxWarps; ++i) {
    if (!takes_part[i]) continue;
    clock_[i].seen = latest;
    ++clock_[i].seen[i];
  }
}

}  // namespace coppice::emulated
