#pragma once
// Where data lives and work runs, as a plain value.
#include <string>

#include "core/error.hpp"

namespace coppice {

enum class DeviceKind { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
  /// "cpu" or "cuda:0"; "cuda:0 (emulated)" where the device is.
  std::string to_string() const;
};

/// Devices of this kind that the build can use and the machine has. The CPU is one.
int device_count(DeviceKind kind);
/// With its model, for people: "cuda:0 (NVIDIA H200, 139 GiB)".
std::string description_of(const Device& device);

/// For the end of an op's dispatch: this build has no body of `op` for `device`.
[[noreturn]] void throw_no_backend(const char* op, const Device& device);

}  // namespace coppice
