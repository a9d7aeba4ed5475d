// Rates of matrix products at the shapes of a training step: forward (y = x W^T), the gradient of
// the input (dx = dy W) and that of the weight (dW += dy^T x, f32). Each is held against sums in
// double of some of its elements before it is timed.
#include <fmt/format.h>

#include <cmath>

#include "core/copy.hpp"
#include "core/gemm.hpp"
#include "device/benches.hpp"
#include "device/device_run.hpp"

namespace coppice::bench {
namespace {

enum class Product { kForward, kInputGradient, kWeightGradient };

struct Linear {
  std::string name;
  std::int64_t rows, in, out;
};

std::string_view name_of(Product product) {
  switch (product) {
    case Product::kForward:
      return "forward";
    case Product::kInputGradient:
      return "d_input";
    case Product::kWeightGradient:
      return "d_weight";
  }
  return "";
}

class Problem {
 public:
  Problem(DeviceRun& run, const Linear& linear, Product product)
      : run_(run), product_(product), rows_(linear.rows), in_(linear.in), out_(linear.out) {
    const bool forward = product == Product::kForward;
    const bool weight = product == Product::kWeightGradient;
    a_shape_ = forward ? Shape{rows_, in_} : Shape{rows_, out_};
    b_shape_ = weight ? Shape{rows_, in_} : Shape{out_, in_};
    c_shape_ = forward ? Shape{rows_, out_} : weight ? Shape{out_, in_} : Shape{rows_, in_};
    a_ = Tensor(run.memory, DType::kBF16, a_shape_, "bench");
    b_ = Tensor(run.memory, DType::kBF16, b_shape_, "bench");
    c_ = Tensor(run.memory, weight ? DType::kF32 : DType::kBF16, c_shape_, "bench");
    a_numbers_.fill(run, a_);
    b_numbers_.fill(run, b_);
    set_zero(run.stream, c_);
  }

  void multiply() {
    GemmOptions options;
    if (product_ == Product::kForward) options.b = Transpose::kYes;
    if (product_ == Product::kWeightGradient) options = {.a = Transpose::kYes, .beta = 1.0};
    gemm(run_.ctx, a_, b_, c_, options);
  }
  double flops() const {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(in_) * static_cast<double>(out_);
  }
  // Corners, and elements scattered between them.
  void check() {
    const auto m = c_shape_[0], n = c_shape_[1];
    for (const auto& [i, j] : {std::pair{std::int64_t{0}, std::int64_t{0}},
                               {m - 1, n - 1},
                               {m / 2, n / 3},
                               {m / 3, n - 1},
                               {m - 1, n / 2}}) {
      const Expected expected = element(i, j);
      const auto found = to_host(run_, c_.view().rows(i, 1).reshape({n}).rows(j, 1)).front();
      // Sums of f32 in any order, then perhaps rounded to bf16.
      const double k = static_cast<double>(inner());
      const double bound = k * 0x1p-24 * expected.size + 0x1p-8 * std::abs(expected.value);
      if (!(std::abs(found - expected.value) <= bound)) {
        throw std::runtime_error(fmt::format("element ({}, {}) is {} and not {} (bound {:.2g})", i,
                                             j, found, expected.value, bound));
      }
    }
  }

 private:
  struct Expected {
    double value = 0, size = 0;
  };
  std::int64_t inner() const {
    return product_ == Product::kForward ? in_ : product_ == Product::kInputGradient ? out_ : rows_;
  }
  Expected element(std::int64_t i, std::int64_t j) const {
    Expected sum;
    for (std::int64_t k = 0; k < inner(); ++k) {
      const bool by_column = product_ == Product::kWeightGradient;
      const auto at_a = by_column ? k * a_shape_[1] + i : i * a_shape_[1] + k;
      const auto at_b = product_ == Product::kForward ? j * b_shape_[1] + k : k * b_shape_[1] + j;
      const double term = a_numbers_.value(at_a) * b_numbers_.value(at_b);
      sum.value += term, sum.size += std::abs(term);
    }
    return sum;
  }

  DeviceRun& run_;
  Product product_;
  std::int64_t rows_, in_, out_;
  Shape a_shape_, b_shape_, c_shape_;
  Numbers a_numbers_{1, 1.0}, b_numbers_{2, 1.0};
  Tensor a_, b_, c_;
};

std::vector<Linear> linears(bool tiny) {
  if (tiny) return {{"tiny", 72, 40, 48}, {"tiny_narrow", 24, 64, 8}};
  constexpr std::int64_t kRows = 16384;
  return {
      {"llama8b_gate_up", kRows, 4096, 28672}, {"llama8b_down", kRows, 14336, 4096},
      {"llama8b_qkv", kRows, 4096, 6144},      {"llama8b_out", kRows, 4096, 4096},
      {"llama8b_head", 2048, 4096, 128256},    {"square_8192", 8192, 8192, 8192},
      {"smollm2_gate_up", kRows, 576, 3072},   {"smollm2_down", kRows, 1536, 576},
      {"smollm2_qkv", kRows, 576, 960},        {"smollm2_head", 4096, 576, 49152},
  };
}

}  // namespace

void gemm_bench(const BenchOptions& options, Report& report) {
  for (const Linear& linear : linears(options.tiny)) {
    for (const auto product :
         {Product::kForward, Product::kInputGradient, Product::kWeightGradient}) {
      report.run(fmt::format("gemm/{}/{}", linear.name, name_of(product)), [&] {
        DeviceRun run;
        Problem problem(run, linear, product);
        problem.multiply();
        problem.check();
        const double seconds = median_seconds(
            run, [&] { problem.multiply(); }, options.sample);
        const double rate = problem.flops() / seconds;
        return nlohmann::json{
            {"rows", linear.rows},
            {"in", linear.in},
            {"out", linear.out},
            {"seconds", seconds},
            {"tflops", rate / 1e12},
            {"of_peak", options.share_of_peak(rate)},
            {"text", fmt::format("[{}, {}] x [{}, {}]  {:9.3f} ms  {:6.1f} TFLOP/s{}", linear.rows,
                                 linear.in, linear.in, linear.out, 1e3 * seconds, rate / 1e12,
                                 options.peak_text(rate))}};
      });
    }
  }
}

}  // namespace coppice::bench
