#include "launch/device_choice.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "attention/prefix_attention.hpp"
#include "configs/run_config.pb.h"
#include "core/build_config.hpp"

namespace coppice {
namespace {

using config::Numerics;

// What keeps every run here from a CUDA device; empty where nothing does.
std::string why_no_cuda(RunConfigUse use, const JobSize& job) {
  if (!build::kWithCuda) return "CUDA is not in this build (it was configured without it)";
  if (use != RunConfigUse::kPlan && job.cuda_devices == 0)
    return "this machine shows no CUDA device (it has none, or no driver for it)";
  return {};
}

bool wants_bf16(const config::RunConfig& config) {
  return config.numerics().has_precision() && config.numerics().precision() == Numerics::BF16;
}

bool wants_wider(const config::RunConfig& config) {
  return config.numerics().has_precision() && config.numerics().precision() != Numerics::BF16;
}

// Of the device and of the precision that is given with it.
void check_precision(const config::RunConfig& config, RunConfigText& text,
                     const std::string& no_cuda) {
  const char* path = "numerics.precision";
  if (wants_bf16(config)) {
    if (config.device() == config::RunConfig::CPU)
      text.add_problem(path, "BF16 runs on CUDA devices only. Use F32 or F64, or device: CUDA.");
    else if (!no_cuda.empty())
      text.add_problem(
          path, fmt::format("BF16 runs on CUDA devices only, and {}. Use F32 or F64.", no_cuda));
  }
  if (config.device() != config::RunConfig::CUDA) return;
  if (!no_cuda.empty())
    text.add_problem("device", fmt::format("{}. Use CPU or AUTO{}.", no_cuda,
                                           build::kWithCuda ? ", or see what nvidia-smi says"
                                                            : ", or a build of the preset cuda"));
  if (wants_wider(config))
    text.add_problem(
        path, fmt::format("{} runs on the CPU only (a CUDA device multiplies BF16 weights and sums "
                          "in f32). Use BF16, or device: CPU.",
                          Numerics::Precision_Name(config.numerics().precision())));
}

}  // namespace

JobSize size_of(const Job& job) {
  // Every process has an emulated device of its own.
  const int devices =
      device_count(DeviceKind::kCuda) * (build::kEmulatedDevice ? job.local_size() : 1);
  return {job.size(), job.default_threads(), devices, job.local_size()};
}

DeviceKind chosen_device(const config::RunConfig& config, RunConfigUse use, const JobSize& job) {
  if (config.device() == config::RunConfig::CPU) return DeviceKind::kCpu;
  if (config.device() == config::RunConfig::CUDA) return DeviceKind::kCuda;
  if (wants_wider(config) || !why_no_cuda(use, job).empty()) return DeviceKind::kCpu;
  return job.cuda_devices > 0 || wants_bf16(config) ? DeviceKind::kCuda : DeviceKind::kCpu;
}

void check_device(const config::RunConfig& config, RunConfigText& text, RunConfigUse use,
                  const JobSize& job, std::int64_t ranks) {
  check_precision(config, text, why_no_cuda(use, job));
  const bool on_cuda = chosen_device(config, use, job) == DeviceKind::kCuda;
  const bool staged = config.parallel().communicator() == config::Parallel::STAGED;
  const char* path = "parallel.communicator";
  if (staged && !on_cuda)
    text.add_problem(path,
                     "STAGED is how ranks on CUDA devices talk; on the CPU they always use MPI. "
                     "Remove it.");
  const bool share = job.cuda_devices > 0 && job.local_ranks > job.cuda_devices;
  if (!staged && on_cuda && ranks > 1 && share && use != RunConfigUse::kPlan)
    text.add_problem(
        path, fmt::format("{} ranks on this machine would share {} CUDA device{} (NCCL "
                          "takes one rank a device). Start {} here, or set STAGED "
                          "(through the host's memory and MPI, which is slow).",
                          job.local_ranks, job.cuda_devices, job.cuda_devices == 1 ? "" : "s",
                          job.cuda_devices));
}

std::vector<std::string> device_problems(const ModelConfig& model, DeviceKind device) {
  const auto& dims = kCudaHeadDims;
  if (device == DeviceKind::kCpu || std::ranges::count(dims, model.head_dim) > 0) return {};
  return {
      fmt::format("head_dim = {} has no attention kernel on CUDA devices (one is compiled for "
                  "each of {}). Use device: CPU.",
                  model.head_dim, fmt::join(dims, ", "))};
}

}  // namespace coppice
