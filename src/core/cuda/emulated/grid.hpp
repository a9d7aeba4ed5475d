#pragma once
// Runs a kernel to its end, block after block. When it runs is the stream's affair.
#include "core/cuda/emulated/kernel.hpp"

namespace coppice::emulated {

/// Errors    DeviceError when the shape is beyond what the device has
void check_shape(const LaunchShape& shape);

/// Errors    DeviceError with the first thing that a check found, and where
void run_grid(const LaunchShape& shape, const KernelCall& call);

}  // namespace coppice::emulated
