#pragma once
// Order of work on a device. An op enqueues on a stream and returns; inputs may not change and
// outputs may not be read on another stream until an Event says so. CPU streams run inline, so on
// the CPU this holds by itself; code written once is right on both.
#include "core/device.hpp"

namespace coppice {

/// A point in a stream's work.
class Event {
 public:
  /// Blocks the host until the work before the point is done.
  void wait() const {}
};

class Stream {
 public:
  explicit Stream(Device device) : device_(device) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const { return device_; }
  Event record() { return {}; }
  /// Later work of this stream starts after the event's point.
  void wait(const Event&) {}
  /// Blocks the host until all work enqueued so far is done.
  void synchronize() {}

 private:
  Device device_;
};

}  // namespace coppice
