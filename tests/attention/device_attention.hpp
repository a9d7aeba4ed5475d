#pragma once
// Attention on a CUDA device (real or emulated) as its tests need it: a context, bf16 tensors from
// plain numbers, and the errors that bf16 may make.
#include <string_view>
#include <vector>

#include "attention/support.hpp"
#include "core/convert.hpp"

namespace coppice::test {

/// Owns one context on a CUDA device.
class DeviceContext {
 public:
  ExecContext& ctx() { return ctx_; }
  /// Standard normal values, rounded to bf16.
  static std::vector<BF16> random(std::int64_t count, std::string_view name);
  Tensor bf16(Shape shape, const std::vector<BF16>& values);
  /// All elements NaN.
  Tensor unset(DType dtype, Shape shape);
  Tensor f32(Shape shape, const std::vector<float>& values);
  /// Waits for the device.
  std::vector<std::byte> bytes_of(const Tensor& x);
  std::vector<double> values_of(const Tensor& x);

 private:
  Tensor filled(DType dtype, Shape shape, const void* values);

  Stream stream_{Device{DeviceKind::kCuda, 0}};
  Memory memory_{stream_};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_{stream_, memory_, scratch_};
};

/// Numbers of one problem on the host, [rows][heads][dim], and the plan's mask over one key space.
struct DeviceProblem {
  Heads heads;
  std::int64_t queries, keys;
  std::vector<BF16> q, k, v, d_out;
  double scale;
};
DeviceProblem device_problem(std::int64_t queries, std::int64_t keys, Heads heads,
                             std::string_view name = "attention");

/// Bytes of what forward and backward computed.
struct DeviceResult {
  std::vector<std::byte> out, softmax_lse, dq, dk, dv;
  friend bool operator==(const DeviceResult&, const DeviceResult&) = default;
};
/// The two ops: the program's own, or copies of them.
struct AttentionOps {
  decltype(&prefix_attention_forward) forward = prefix_attention_forward;
  decltype(&prefix_attention_backward) backward = prefix_attention_backward;
};
DeviceResult run(DeviceContext& device, const AttentionPlan& plan, const DeviceProblem& problem,
                 const AttentionOps& ops = {});

std::vector<double> bf16_values(const std::vector<std::byte>& bytes);
std::vector<double> f32_values(const std::vector<std::byte>& bytes);

/// Relative L2 errors.
struct Errors {
  double out, lse, dq, dk, dv;
};
reference::AttentionProblem problem_of(const DeviceProblem& problem,
                                       std::vector<std::vector<int>> mask);
/// What a problem should give, and what bf16 may make of it.
struct Expectation {
  reference::AttentionResult result;
  reference::AttentionGradients gradients;
  /// Twice the errors of the plain method whose every matrix (scores, probabilities, their
  /// gradients, results) is stored in bf16; of lse, what summing in f32 may lose.
  Errors bounds;
};
Expectation expectation(const DeviceProblem& problem, std::vector<std::vector<int>> mask);
Errors errors(const DeviceResult& result, const Expectation& expected);

}  // namespace coppice::test
