#pragma once
// Wall time of the phases of a step, on any device.
#include <chrono>

#include "core/stream.hpp"

namespace coppice {

/// Effects   each reading waits for all work enqueued on the stream so far
class Stopwatch {
 public:
  explicit Stopwatch(Stream& stream) : stream_(stream) { lap(); }

  /// Seconds since the last reading.
  double lap() {
    stream_.synchronize();
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  Stream& stream_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace coppice
