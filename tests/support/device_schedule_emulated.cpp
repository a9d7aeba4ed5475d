#include "core/cuda/emulated/gpu.hpp"
#include "support/device_schedule.hpp"

namespace coppice::test {

void set_device_schedule(int run) {
  auto& options = emulated::gpu().options;
  options.seed = static_cast<std::uint64_t>(run) + 1;
  options.schedule = run % 2 == 0 ? emulated::Schedule::kRandom : emulated::Schedule::kRunAhead;
}

}  // namespace coppice::test
