#pragma once
// The benches of device_bench, and what all of them are told.
#include <string>

#include "device/report.hpp"

namespace coppice::bench {

struct BenchOptions {
  bool tiny = false;  ///< sizes that the emulated device gets through
  double peak = 0;    ///< of the device, FLOP/s; 0 where unknown
  std::int64_t memory_bytes = 0;
  double sample = 0.3;  ///< seconds to time one thing for

  /// Null where the peak is unknown: then no share is told.
  nlohmann::json share_of_peak(double flops_per_second) const;
  std::string peak_text(double flops_per_second) const;
};

void attention_bench(const BenchOptions& options, Report& report);
void gemm_bench(const BenchOptions& options, Report& report);
void train_bench(const BenchOptions& options, Report& report);
void dualkv_bench(const BenchOptions& options, Report& report);

}  // namespace coppice::bench
