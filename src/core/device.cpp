#include "core/device.hpp"

#include "core/build_config.hpp"
#include "core/cuda/runtime.hpp"

namespace coppice {

std::string Device::to_string() const {
  if (kind == DeviceKind::kCpu) return "cpu";
  return fmt::format("cuda:{}{}", index, build::kEmulatedDevice ? " (emulated)" : "");
}

int device_count(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return 1;
  if constexpr (build::kWithCuda) return cuda::device_count();
  return 0;
}

std::string description_of(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return device.to_string();
  if constexpr (build::kEmulatedDevice) {
    return fmt::format("cuda:{} (emulated by the CPU: checked, and slow)", device.index);
  } else if constexpr (build::kWithCuda) {
    const cuda::DeviceProperties found = cuda::properties(device);
    return fmt::format("cuda:{} ({}, {} GiB)", device.index, found.name,
                       found.memory_bytes / (std::int64_t{1} << 30));
  }
  throw_no_backend("description_of", device);
}

void throw_no_backend(const char* op, const Device& device) {
  throw DeviceError(
      fmt::format("{} has no body for device {} in this build (it was configured without it). "
                  "Use a build made for this device, or device: CPU.",
                  op, device.to_string()));
}

}  // namespace coppice
