#pragma once
// The machine's own single-precision matrix rate, which every CPU figure is quoted against. It
// drifts with the machine, so it is measured again between the runs that it is compared with.
#include <array>
#include <cstdint>
#include <vector>

namespace coppice::bench {

class SgemmRate {
 public:
  explicit SgemmRate(int threads);

  /// Multiplies at 1024, 2048 and 4096 cubed, the small ones several times; the best of these is a
  /// sample.
  void sample();
  /// Median of the samples, to hold against medians of what was measured between them.
  ///
  /// Units     FLOP/s
  double rate() const;
  double highest() const;

 private:
  static constexpr std::array<std::int64_t, 3> kSizes{1024, 2048, 4096};
  int threads_;
  std::vector<double> samples_;
  std::vector<float> a_, b_, c_;
};

}  // namespace coppice::bench
