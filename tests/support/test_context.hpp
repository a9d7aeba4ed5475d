#pragma once
// What a test of an op needs around it: a device, its memory, scratch, and tensors with known
// values.
#include <string>
#include <vector>

#include "core/exec_context.hpp"
#include "core/rng.hpp"

namespace coppice::test {

inline constexpr Device kCudaDevice{DeviceKind::kCuda, 0};

/// Where a parametrised test runs, and in which dtype.
struct Backend {
  Device device;
  DType dtype;
  /// "CpuF64", "CudaBf16"; a case with "Cuda" in its name gets the label of CUDA devices.
  std::string name() const;
};
/// f32 and f64 on the CPU and, where the build has the backend, bf16 on CUDA.
std::vector<Backend> backends();
/// bf16 on CUDA; none in a CPU build.
std::vector<Backend> cuda_backends();

/// Owns one context, by default of the CPU. `threads` defaults to two, so that races have a chance
/// to show.
class TestContext {
 public:
  explicit TestContext(int threads = 2) : TestContext(Device{}, threads) {}
  explicit TestContext(Device device, int threads = 2);
  ExecContext& ctx() { return ctx_; }
  Stream& stream() { return stream_; }
  Memory& memory() { return memory_; }
  Arena& scratch() { return scratch_; }

  /// Standard normal values times `scale`, the same for every dtype up to rounding.
  Tensor random(DType dtype, Shape shape, std::string_view name, double scale = 1.0);
  Tensor zeros(DType dtype, Shape shape);
  Tensor filled(DType dtype, Shape shape, double value);
  Tensor from(DType dtype, Shape shape, const std::vector<double>& values);

 private:
  Stream stream_;
  Memory memory_;
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
};

/// Elements in row-major order as doubles, whatever the device, the strides and the dtype (f32,
/// f64, bf16 or i32). Waits for the device.
std::vector<double> values_of(ConstTensorView tensor);

/// ||a - b|| / ||b||; the plain norm of a where b is all zero. NaN where either has a NaN.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b);

/// Each value rounded to `dtype` and back.
std::vector<double> rounded(std::vector<double> values, DType dtype);

/// True if both have the same elements, bit for bit.
bool bit_equal(ConstTensorView a, ConstTensorView b);

}  // namespace coppice::test
