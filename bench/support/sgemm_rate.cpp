#include "support/sgemm_rate.hpp"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <chrono>

namespace coppice::bench {

SgemmRate::SgemmRate(int threads)
    : threads_(threads),
      a_(kSizes.back() * kSizes.back(), 0.5F),
      b_(kSizes.back() * kSizes.back(), 0.25F),
      c_(kSizes.back() * kSizes.back()) {}

void SgemmRate::sample() {
  omp_set_num_threads(threads_);
  double best = 0;
  for (const auto n : kSizes) {
    const int repetitions = n == 1024 ? 8 : n == 2048 ? 2 : 1;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const auto start = std::chrono::steady_clock::now();
      dnnl_sgemm('N', 'T', n, n, n, 1.0F, a_.data(), n, b_.data(), n, 0.0F, c_.data(), n);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      const auto flops =
          2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
      best = std::max(best, flops / seconds.count());
    }
  }
  samples_.push_back(best);
}

double SgemmRate::rate() const {
  std::vector<double> sorted = samples_;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

double SgemmRate::highest() const { return *std::max_element(samples_.begin(), samples_.end()); }

}  // namespace coppice::bench
