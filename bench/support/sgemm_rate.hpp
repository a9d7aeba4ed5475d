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

  /// Multiplies once at 1024, 2048 and 4096 and keeps the best rate of each.
  void sample();
  /// Best rate seen so far, over all three sizes.
  ///
  /// Units     FLOP/s
  double best() const;

 private:
  static constexpr std::array<std::int64_t, 3> kSizes{1024, 2048, 4096};
  int threads_;
  std::array<double, 3> best_{};
  std::vector<float> a_, b_, c_;
};

}  // namespace coppice::bench
