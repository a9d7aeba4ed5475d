#pragma once
// Streams of the emulated device, as its own parts and launches see them: a stream is a queue of
// closures. When they run is the scheduler's business.
#include <functional>
#include <string>

#include "core/cuda/emulated/stream_order.hpp"
#include "core/stream.hpp"

namespace coppice::emulated {

/// Puts `work` behind what the stream already holds. `name` is what errors call it. What `work`
/// throws reaches the host as a DeviceError at its next wait for the device.
void enqueue(cuda::StreamState& stream, std::string name, std::function<void()> work);
inline void enqueue(Stream& stream, std::string name, std::function<void()> work) {
  enqueue(stream.state(), std::move(name), std::move(work));
}

/// Work that other processes must take part in: called again until it returns true. Other streams
/// go on meanwhile. Work that nothing orders with it may not touch `claims`.
void enqueue_attempts(cuda::StreamState& stream, std::string name, std::function<bool()> attempt,
                      Claims claims);

/// The host waits for something else than the device, which works meanwhile.
void go_on();

/// For work that is not a kernel: `what` (a copy's source, say) must lie in one block of the
/// device's memory in use, and in nothing that a collective uses meanwhile.
///
/// Errors    DeviceError
void check_device_range(const char* what, const void* address, std::int64_t bytes, Use use);

}  // namespace coppice::emulated
