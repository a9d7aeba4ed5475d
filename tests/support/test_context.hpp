#pragma once
// What a test of an op needs around it: a device, its memory, scratch, and tensors with known
// values.
#include <vector>

#include "core/exec_context.hpp"
#include "core/rng.hpp"

namespace coppice::test {

/// Owns one CPU context. `threads` defaults to two, so that races have a chance to show.
class TestContext {
 public:
  explicit TestContext(int threads = 2) : ctx_{stream_, memory_, scratch_, threads} {}
  ExecContext& ctx() { return ctx_; }
  Memory& memory() { return memory_; }
  Arena& scratch() { return scratch_; }

  /// Standard normal values times `scale`, the same for every dtype up to rounding.
  Tensor random(DType dtype, Shape shape, std::string_view name, double scale = 1.0);
  Tensor zeros(DType dtype, Shape shape);
  Tensor filled(DType dtype, Shape shape, double value);
  Tensor from(DType dtype, Shape shape, const std::vector<double>& values);

 private:
  Memory memory_{Device{}};
  Stream stream_{Device{}};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
};

/// Elements in row-major order as doubles, whatever the dtype or strides (f32, f64 or bf16).
std::vector<double> values_of(ConstTensorView tensor);

/// ||a - b|| / ||b||; the plain norm of a where b is all zero. NaN where either has a NaN.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b);

/// True if both have the same elements, bit for bit.
bool bit_equal(ConstTensorView a, ConstTensorView b);

}  // namespace coppice::test
