#pragma once
// Which device a run config means, and what forbids it: this build, this machine, the precision,
// the number of ranks, the model's heads. Making the device is launch/session.hpp's business.
#include <string>
#include <vector>

#include "core/device.hpp"
#include "launch/job.hpp"
#include "launch/run_config_check.hpp"
#include "model/model_config.hpp"

namespace coppice {

/// The job's ranks, and what they find on this machine.
JobSize size_of(const Job& job);

/// AUTO takes the CPU for F32 and F64, which run nowhere else; else CUDA where this build and this
/// machine have it. plan needs no machine, so a precision of BF16 is enough there.
DeviceKind chosen_device(const config::RunConfig& config, RunConfigUse use, const JobSize& job);

/// Adds every problem of `device`, `numerics.precision` and `parallel.communicator` together.
/// `ranks`: of the run, planned ones too.
void check_device(const config::RunConfig& config, RunConfigText& text, RunConfigUse use,
                  const JobSize& job, std::int64_t ranks);

/// Why the device cannot run the model, one line each; none where it can.
std::vector<std::string> device_problems(const ModelConfig& model, DeviceKind device);

}  // namespace coppice
