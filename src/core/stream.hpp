#pragma once
// Order of work on a device. An op enqueues on a stream and returns; inputs may not change and
// outputs may not be read on another stream until an Event says so. CPU streams run inline, so on
// the CPU this holds by itself; code written once is right on both.
#include <memory>

#include "core/device.hpp"

namespace coppice {

namespace cuda {
// A stream and an event of the device; what is in them is core/cuda/'s business (runtime.hpp).
struct StreamState;
struct EventState;
StreamState* begin_stream(const Device& device);
void end(StreamState* stream);
void end(EventState* event);
EventState* record(StreamState& stream);
void wait(const EventState& event);
bool is_past(const EventState& event);
void wait(StreamState& stream, const EventState& event);
void synchronize(StreamState& stream);

struct End {
  void operator()(StreamState* stream) const;
  void operator()(EventState* event) const;
};
}  // namespace cuda

/// A point in a stream's work.
class Event {
 public:
  Event() = default;
  /// Blocks the host until the work before the point is done.
  ///
  /// Errors    DeviceError if any work of the device failed
  void wait() const;
  /// Whether the work before the point is done. Any thread may ask.
  bool is_past() const;

 private:
  friend class Stream;
  explicit Event(cuda::EventState* state) : state_(state) {}
  std::unique_ptr<cuda::EventState, cuda::End> state_;  // none: a point that has passed
};

class Stream {
 public:
  /// Errors    DeviceError where this build or machine has no such device
  explicit Stream(Device device);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const { return device_; }
  Event record();
  /// Later work of this stream starts after the event's point.
  void wait(const Event& event);
  /// Blocks the host until all work enqueued so far is done.
  ///
  /// Errors    DeviceError if any work of the device failed
  void synchronize();
  /// For core/cuda/ and launches: the device's stream.
  cuda::StreamState& state() const {
    COPPICE_CHECK(state_ != nullptr, "a stream of {} used as one of a CUDA device",
                  device_.to_string());
    return *state_;
  }

 private:
  Device device_;
  std::unique_ptr<cuda::StreamState, cuda::End> state_;  // none on the CPU
};

}  // namespace coppice
