#include "core/stream.hpp"

#include "core/build_config.hpp"

namespace coppice {

void cuda::End::operator()(StreamState* stream) const {
  if constexpr (build::kWithCuda) end(stream);
}

void cuda::End::operator()(EventState* event) const {
  if constexpr (build::kWithCuda) end(event);
}

void Event::wait() const {
  if constexpr (build::kWithCuda) {
    if (state_) cuda::wait(*state_);
  }
}

bool Event::is_past() const {
  if constexpr (build::kWithCuda) {
    if (state_) return cuda::is_past(*state_);
  }
  return true;
}

Stream::Stream(Device device) : device_(device) {
  if (device.kind == DeviceKind::kCpu) return;
  if constexpr (build::kWithCuda) {
    state_.reset(cuda::begin_stream(device));
  } else {
    throw_no_backend("Stream", device);
  }
}

Event Stream::record() {
  if constexpr (build::kWithCuda) {
    if (state_) return Event(cuda::record(*state_));
  }
  return {};
}

void Stream::wait(const Event& event) {
  if constexpr (build::kWithCuda) {
    if (!event.state_) return;
    // The host is as good a place to wait in as a stream that runs inline.
    state_ ? cuda::wait(*state_, *event.state_) : cuda::wait(*event.state_);
  }
}

void Stream::synchronize() {
  if constexpr (build::kWithCuda) {
    if (state_) cuda::synchronize(*state_);
  }
}

}  // namespace coppice
