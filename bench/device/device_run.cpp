#include "device/device_run.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/convert.hpp"
#include "core/copy.hpp"
#include "core/cuda/runtime.hpp"
#include "core/rng.hpp"

namespace coppice::bench {
namespace {

double once(DeviceRun& run, const std::function<void()>& work) {
  const auto begin = cuda::mark_time(run.stream.state());
  work();
  const auto end = cuda::mark_time(run.stream.state());
  return cuda::seconds_between(*begin, *end);
}

template <class T>
std::vector<double> doubles(DeviceRun& run, ConstTensorView tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.numel()));
  copy(run.stream, tensor, host_view(values.data(), tensor.shape()));
  run.stream.synchronize();
  std::vector<double> result;
  result.reserve(values.size());
  for (const T value : values) {
    if constexpr (std::is_same_v<T, BF16>) {
      result.push_back(double{to_f32(value)});
    } else {
      result.push_back(double{value});
    }
  }
  return result;
}

}  // namespace

Numbers::Numbers(std::uint64_t seed, double scale) {
  const RandomStream stream(1, "bench/device");
  for (std::int64_t i = 0; i < kCycle + kRun; ++i) {
    const auto place = (static_cast<std::uint64_t>(i) + 7919 * seed) % kCycle;
    values_.push_back(double{to_f32(to_bf16(scale * stream.normal(place)))});
  }
}

void Numbers::fill(DeviceRun& run, TensorView tensor) const {
  const auto count = tensor.numel();
  const TensorView all = tensor.reshape({count});
  const auto first = std::min(count, kCycle);
  std::vector<BF16> bf16;
  std::vector<float> f32;
  for (std::int64_t i = 0; i < first; ++i) {
    const auto value = static_cast<float>(values_[static_cast<std::size_t>(i)]);
    tensor.dtype() == DType::kBF16 ? bf16.push_back(to_bf16(value)) : f32.push_back(value);
  }
  const auto host = tensor.dtype() == DType::kBF16 ? host_view(bf16.data(), {first})
                                                   : host_view(f32.data(), {first});
  copy(run.stream, host, all.rows(0, first));
  // Twice as much with every copy, by whole cycles.
  for (std::int64_t done = first; done < count;) {
    const auto more = std::min(done, count - done);
    copy(run.stream, all.rows(0, more), all.rows(done, more));
    done += more;
  }
}

std::vector<double> to_host(DeviceRun& run, ConstTensorView tensor) {
  return tensor.dtype() == DType::kBF16 ? doubles<BF16>(run, tensor) : doubles<float>(run, tensor);
}

double median_seconds(DeviceRun& run, const std::function<void()>& work, double seconds) {
  double warm = once(run, work);
  if (warm < seconds)
    warm = once(run, work);  // the first may have loaded code or chosen algorithms
  std::vector<double> times;
  const auto count = std::clamp(seconds / std::max(warm, 1e-9), 3.0, 30.0);
  while (static_cast<double>(times.size()) < count) times.push_back(once(run, work));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double peak_flops(std::string_view device_name) {
  struct Peak {
    std::string_view name;
    double tera;
  };
  // Whole names, as the driver tells them: parts of one family differ in clock and power.
  static constexpr std::array kPeaks{
      Peak{"NVIDIA H200", 989},           Peak{"NVIDIA H100 80GB HBM3", 989},
      Peak{"NVIDIA H100 PCIe", 756},      Peak{"NVIDIA A100-SXM4-80GB", 312},
      Peak{"NVIDIA A100-SXM4-40GB", 312}, Peak{"NVIDIA A100 80GB PCIe", 312},
      Peak{"NVIDIA A100-PCIE-40GB", 312},
  };
  for (const Peak& peak : kPeaks) {
    if (peak.name == device_name) return peak.tera * 1e12;
  }
  return 0;
}

}  // namespace coppice::bench
