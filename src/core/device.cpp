#include "core/device.hpp"

namespace coppice {

std::string Device::to_string() const {
  return kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", index);
}

void throw_no_backend(const char* op, const Device& device) {
  throw DeviceError(
      fmt::format("{} has no body for device {} in this build (it was configured without it). "
                  "Use a build made for this device, or device: CPU.",
                  op, device.to_string()));
}

}  // namespace coppice
