#pragma once
// What the tests of kernels share: the naive method's error as the measure, matrices whose
// surroundings are garbage, and runs under every schedule of the device.
#include <functional>

#include "layers/support.hpp"
#include "reference/naive_layers.hpp"
#include "support/device_schedule.hpp"

namespace coppice::test {

/// Distance of `tensor` from `exact`, in the distance of the naive method, which computes exactly
/// and rounds what it stores. `scale` is the size of what is added up in f32, where terms cancel.
inline double errors_of_naive(ConstTensorView tensor, const std::vector<double>& exact,
                              double scale = 0) {
  const auto distance = [&](std::vector<double> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= exact[i];
    return std::sqrt(reference::dot(values, values));
  };
  const double off = distance(values_of(tensor));
  const double naive = distance(rounded(exact, tensor.dtype()));
  return off == 0 ? 0 : off / (naive + tolerance(DType::kF32) * scale);
}

/// [rows, width] random numbers or zeros as columns of a wider matrix that is NaN elsewhere. Rows
/// start at multiples of 16 bytes where `aligned`.
class Surrounded {
 public:
  enum class Start { kAligned, kUnaligned };

  Surrounded(TestContext& test, DType dtype, std::int64_t rows, std::int64_t width, Start start,
             std::string_view name, double scale = 1)
      : before_(start == Start::kAligned ? 8 : 3), width_(width) {
    const auto after = start == Start::kAligned ? 16 - width % 8 : 2;
    const auto values = values_of(test.random(dtype, {rows, width}, name, scale));
    std::vector<double> all;
    for (std::int64_t row = 0; row < rows; ++row) {
      all.insert(all.end(), static_cast<std::size_t>(before_), kNothing);
      const auto begin = values.begin() + row * width;
      all.insert(all.end(), begin, begin + width);
      all.insert(all.end(), static_cast<std::size_t>(after), kNothing);
    }
    matrix_ = test.from(dtype, {rows, before_ + width + after}, all);
  }

  TensorView view() { return matrix_.view().columns(before_, width_); }
  /// Whether what is around the columns is as it was.
  bool surroundings_are_untouched() const {
    const auto columns = matrix_.shape()[1];
    const auto values = values_of(matrix_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % columns;
      const bool around = column < before_ || column >= before_ + width_;
      if (around && !std::isnan(values[i])) return false;
    }
    return true;
  }

 private:
  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  std::int64_t before_, width_;
  Tensor matrix_;
};

/// Runs `op`, which gives its results, under several schedules.
inline bool same_bits_under_every_schedule(const std::function<std::vector<Tensor>()>& op) {
  const auto first = op();
  bool same = true;
  for (int run = 1; run < 4; ++run) {
    set_device_schedule(run);
    const auto other = op();
    for (std::size_t i = 0; i < first.size(); ++i) same = same && bit_equal(first[i], other[i]);
  }
  set_device_schedule(0);
  return same;
}

}  // namespace coppice::test
