#pragma once
// The clock and the tensors of cluster_calibration: how an op is repeated and its median taken.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/exec_context.hpp"
#include "core/rng.hpp"
#include "core/tensor.hpp"
#include "launch/cluster_calibration.hpp"
#include "launch/statistics.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// Seconds since some beginning.
inline double seconds_of(CalibrationClock clock) {
  if (clock == CalibrationClock::kWall)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// A CPU context on which ops are timed.
class CalibrationBench {
 public:
  CalibrationBench(Communicator& world, const CalibrationOptions& options, double seconds_of_figure)
      : world_(world),
        clock_(options.clock),
        seconds_(seconds_of_figure),
        ctx_{stream_, memory_, scratch_, options.threads},
        numbers_(static_cast<std::size_t>(kNumbers)) {
    const RandomStream random(1, "calibration");
    for (std::size_t i = 0; i < numbers_.size(); ++i)
      numbers_[i] = static_cast<float>(random.normal(i));
  }

  ExecContext& ctx() { return ctx_; }
  Communicator& world() { return world_; }

  /// Normal numbers: zeros and denormals would lie.
  Tensor tensor(const Shape& shape) {
    Tensor tensor(memory_, DType::kF32, shape, "calibration");
    float* data = tensor.view().data<float>();
    for (std::int64_t i = 0; i < shape.numel(); i += kNumbers)
      std::copy_n(numbers_.data(), std::min(kNumbers, shape.numel() - i), data + i);
    return tensor;
  }
  std::vector<Tensor> tensors(std::int64_t count, const Shape& shape) {
    std::vector<Tensor> all;
    for (std::int64_t i = 0; i < count; ++i) all.push_back(tensor(shape));
    return all;
  }

  /// Median seconds of op(0), op(1), ...; ranks begin together. At least five are timed.
  double seconds(const std::function<void(std::int64_t)>& op) {
    for (std::int64_t i = 0; i < 2; ++i) op(i);  // threads start, scratch grows
    world_.barrier(stream_);
    std::vector<double> laps;
    double sum = 0;
    for (std::int64_t i = 2; std::ssize(laps) < 5 || (sum < seconds_ && std::ssize(laps) < 1000);
         ++i) {
      laps.push_back(lap(clock_, [&] { op(i); }));
      sum += laps.back();
    }
    return *median(std::move(laps));
  }
  /// The same number of times on every rank, for ops that ranks do together.
  double seconds_together(int repetitions, const std::function<void(std::int64_t)>& op) {
    op(0);
    world_.barrier(stream_);
    std::vector<double> laps;
    for (std::int64_t i = 1; i <= repetitions; ++i)
      laps.push_back(lap(CalibrationClock::kWall, [&] { op(i); }));
    return *median(std::move(laps));
  }

 private:
  template <class Op>
  static double lap(CalibrationClock clock, const Op& op) {
    const double start = seconds_of(clock);
    op();
    return seconds_of(clock) - start;
  }

  static constexpr std::int64_t kNumbers = 16384;

  Communicator& world_;
  CalibrationClock clock_;
  double seconds_;
  Stream stream_{Device{}};
  Memory memory_{Device{}};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
  std::vector<float> numbers_;
};

}  // namespace coppice
