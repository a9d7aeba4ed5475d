#pragma once
// What the benches on a CUDA device stand on: a context there, numbers that are known on both sides
// without a copy, and times of the device's own clock. What is timed and how it is checked is each
// bench's own matter.
#include <functional>
#include <vector>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"

namespace coppice::bench {

/// One device, one stream.
struct DeviceRun {
  Stream stream{Device{DeviceKind::kCuda, 0}};
  Memory memory{stream};
  Arena scratch{memory, "scratch"};
  ExecContext ctx{stream, memory, scratch, 1};
};

/// Normal numbers, rounded to bf16, that repeat after a prime count: element i of a tensor filled
/// from here is `value(i)`, so the host need not hold what fills gigabytes of the device.
class Numbers {
 public:
  /// Each seed begins at another place of the same cycle.
  Numbers(std::uint64_t seed, double scale);

  /// Sets every element of a contiguous tensor of bf16 or f32.
  void fill(DeviceRun& run, TensorView tensor) const;
  double value(std::int64_t i) const { return *from(i); }
  /// Elements i, i + 1, ..., kRun of them.
  const double* from(std::int64_t i) const {
    return values_.data() + static_cast<std::size_t>(i % kCycle);
  }

  static constexpr std::int64_t kRun = 256;

 private:
  static constexpr std::int64_t kCycle = 65521;  // a prime: rows of any width begin elsewhere
  std::vector<double> values_;                   // a cycle, and the begin of the next
};

/// Elements of bf16 or f32 as doubles, rows that may be apart one after the other. Waits.
std::vector<double> to_host(DeviceRun& run, ConstTensorView tensor);

/// Median seconds of the device for one `work`, by marks on the stream: run once or twice first,
/// then again and again for about `seconds`, 3 times at least and 30 at most.
double median_seconds(DeviceRun& run, const std::function<void()>& work, double seconds = 0.3);

/// Dense bf16 products with f32 sums, as the maker states them; 0 for a device not in the table.
///
/// Units     FLOP/s
double peak_flops(std::string_view device_name);

}  // namespace coppice::bench
