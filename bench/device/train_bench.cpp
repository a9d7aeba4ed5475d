// Training steps of SmolLM2-135M, whole, and of the layers of an 8B model, as often as a device
// holds them beside the optimizer's state.
#include "device/step_bench.hpp"

namespace coppice::bench {
namespace {

std::vector<StepWorkload> workloads(bool tiny) {
  if (tiny) {
    const ModelShape shape{"tiny", "Llama", 128, 192, 2, 1, 64, 151};
    return {{"train", shape, {1, 2}, 4, 20, 6, 4, {2, 4}, 4}};
  }
  const ModelShape llama8b{"llama8b", "Llama", 4096, 14336, 32, 8, 128, 128256};
  const ModelShape smollm2{"smollm2", "Llama", 576, 1536, 9, 3, 64, 49152, true};
  return {{"train", llama8b, {4, 8}, 32, 1024, 256, 32, {2, 8, 32}, 32},
          {"train", smollm2, {30}, 30, 1024, 256, 32, {2, 8, 32}, 32}};
}

}  // namespace

void train_bench(const BenchOptions& options, Report& report) {
  for (const auto& workload : workloads(options.tiny)) step_bench(workload, options, report);
}

}  // namespace coppice::bench
