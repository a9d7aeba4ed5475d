#pragma once
// The backends that the optimizer's tests run on. Gradients, moments and master weights are f32 on
// a CUDA device too.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/build_config.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

struct OptimBackend {
  const char* name;
  Device device;
  DType dtype;
};

/// A build without a backend has no cases for it.
inline std::vector<OptimBackend> optim_backends(std::optional<DType> only = std::nullopt) {
  std::vector<OptimBackend> backends{{"CpuF32", {}, DType::kF32}, {"CpuF64", {}, DType::kF64}};
  if (build::kWithCuda) backends.push_back({"CudaF32", kCudaDevice, DType::kF32});
  if (only) std::erase_if(backends, [&](const auto& backend) { return backend.dtype != *only; });
  return backends;
}

inline std::string optim_backend_name(const testing::TestParamInfo<OptimBackend>& info) {
  return info.param.name;
}

class OptimTest : public testing::TestWithParam<OptimBackend> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  Device device() const { return GetParam().device; }
};

}  // namespace coppice::test
