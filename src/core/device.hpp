#pragma once
// Where data lives and work runs, as a plain value.
#include <string>

#include "core/build_config.hpp"
#include "core/error.hpp"

namespace coppice {

enum class DeviceKind { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
  /// "cpu" or "cuda:0"
  std::string to_string() const;
};

/// For the end of an op's dispatch: this build has no body of `op` for `device`.
[[noreturn]] void throw_no_backend(const char* op, const Device& device);

}  // namespace coppice
