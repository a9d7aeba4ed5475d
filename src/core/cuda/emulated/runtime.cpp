// The CUDA runtime's calls on the emulated device.
#include "core/cuda/runtime.hpp"

#include <cstdlib>
#include <cstring>

#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/stream.hpp"

namespace coppice::cuda {

struct StreamState {};
struct EventState {};

StreamState* begin_stream(const Device&) { return new StreamState; }
void end(StreamState* stream) { delete stream; }
void end(EventState* event) { delete event; }
EventState* record(StreamState&) { return new EventState; }
void wait(const EventState&) {}
void wait(StreamState&, const EventState&) {}
void synchronize(StreamState&) {}
void synchronize_device(const Device&) {}

std::byte* allocate(StreamState&, std::int64_t bytes) {
  return emulated::gpu().memory.allocate(bytes);
}
void free(StreamState&, std::byte* block) { emulated::gpu().memory.release(block); }
std::byte* allocate_pinned(std::int64_t bytes) {
  return static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(bytes)));
}
void free_pinned(std::byte* block) { std::free(block); }

void copy(StreamState&, const Copy& copy) {
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.to_stride,
                static_cast<const std::byte*>(copy.from) + row * copy.from_stride,
                static_cast<std::size_t>(copy.bytes));
  }
}
void fill(StreamState&, void* to, std::uint8_t value, std::int64_t bytes) {
  std::memset(to, value, static_cast<std::size_t>(bytes));
}

DeviceProperties properties(const Device&) {
  return {"emulated device", std::int64_t{16} << 30, 227 << 10, 4, 90};
}
int device_count() { return 1; }

}  // namespace coppice::cuda

namespace coppice::emulated {
void enqueue(cuda::StreamState&, std::string, std::function<void()> work) { work(); }
}  // namespace coppice::emulated
