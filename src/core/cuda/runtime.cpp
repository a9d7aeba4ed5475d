// The CUDA runtime's calls on a real device.
#include "core/cuda/runtime.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "core/cuda/launch_support.hpp"

namespace coppice::cuda {
namespace {

cudaStream_t native(StreamState& stream) { return static_cast<cudaStream_t>(stream.native); }

bool is_pinned(const void* host) {
  cudaPointerAttributes attributes{};
  check_device(cudaPointerGetAttributes(&attributes, host), "asking what an address is");
  return attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

struct EventState {
  cudaEvent_t native;
};
struct TimeMark {
  cudaEvent_t native;
};

void check_device(int code, const char* action) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next launch would report this one
  throw DeviceError(fmt::format("CUDA failed while {}: {} ({}).", action, cudaGetErrorName(error),
                                cudaGetErrorString(error)));
}

void* native_stream(Stream& stream) { return stream.state().native; }

StreamState* begin_stream(const Device& device) {
  // CUDA's current device belongs to the calling thread; a process uses one device and one thread
  // that launches, so it is set here and nowhere else.
  check_device(cudaSetDevice(device.index), "choosing the device");
  // Memory given back stays with the process: asking the driver again would wait for the device.
  cudaMemPool_t pool = nullptr;
  check_device(cudaDeviceGetDefaultMemPool(&pool, device.index), "finding the memory pool");
  auto keep = std::numeric_limits<std::uint64_t>::max();
  check_device(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
               "setting up the memory pool");
  cudaStream_t stream = nullptr;
  check_device(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return new StreamState{device, stream, nullptr, nullptr};
}

// Ends cannot throw; a device that failed says so at the next call that can.
void end(StreamState* stream) {
  cudaStreamSynchronize(native(*stream));
  stream->products.reset();
  stream->staging.reset();
  cudaStreamDestroy(native(*stream));
  delete stream;
}

EventState* record(StreamState& stream) {
  cudaEvent_t event = nullptr;
  check_device(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  auto* state = new EventState{event};
  check_device(cudaEventRecord(event, native(stream)), "recording an event");
  return state;
}
void end(EventState* event) {
  cudaEventDestroy(event->native);
  delete event;
}
void wait(const EventState& event) {
  check_device(cudaEventSynchronize(event.native), "waiting for an event");
}
void wait(StreamState& stream, const EventState& event) {
  check_device(cudaStreamWaitEvent(native(stream), event.native, 0), "ordering two streams");
}

TimeMarkPtr mark_time(StreamState& stream) {
  cudaEvent_t event = nullptr;
  check_device(cudaEventCreateWithFlags(&event, cudaEventDefault), "making an event");
  TimeMarkPtr mark(new TimeMark{event});
  check_device(cudaEventRecord(event, native(stream)), "recording an event");
  return mark;
}
void EndTimeMark::operator()(TimeMark* mark) const {
  cudaEventDestroy(mark->native);
  delete mark;
}
double seconds_between(const TimeMark& begin, const TimeMark& end) {
  check_device(cudaEventSynchronize(end.native), "waiting for an event");
  float milliseconds = 0;
  check_device(cudaEventElapsedTime(&milliseconds, begin.native, end.native), "reading a time");
  return 1e-3 * double{milliseconds};
}

void synchronize(StreamState& stream) {
  check_device(cudaStreamSynchronize(native(stream)), "waiting for a stream");
}
void synchronize_device(const Device& device) {
  check_device(cudaSetDevice(device.index), "choosing the device");
  check_device(cudaDeviceSynchronize(), "waiting for the device");
}

std::byte* allocate(StreamState& stream, std::int64_t bytes) {
  void* block = nullptr;
  const auto error =
      cudaMallocAsync(&block, static_cast<std::size_t>(bytes), native(stream));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_device(error, "allocating memory");
  return static_cast<std::byte*>(block);
}
void free(StreamState& stream, std::byte* block) { cudaFreeAsync(block, native(stream)); }

std::byte* allocate_pinned(std::int64_t bytes) {
  void* block = nullptr;
  check_device(cudaMallocHost(&block, static_cast<std::size_t>(bytes)), "pinning host memory");
  return static_cast<std::byte*>(block);
}
void free_pinned(std::byte* block) { cudaFreeHost(block); }

void copy(StreamState& stream, const Copy& copy) {
  if (copy.bytes == 0 || copy.rows == 0) return;
  const auto kind = copy.kind == CopyKind::kOnDevice   ? cudaMemcpyDeviceToDevice
                    : copy.kind == CopyKind::kToDevice ? cudaMemcpyHostToDevice
                                                       : cudaMemcpyDeviceToHost;
  const auto bytes = static_cast<std::size_t>(copy.bytes);
  if (copy.rows == 1) {
    check_device(cudaMemcpyAsync(copy.to, copy.from, bytes, kind, native(stream)), "copying");
  } else {
    check_device(cudaMemcpy2DAsync(copy.to, static_cast<std::size_t>(copy.to_stride), copy.from,
                                   static_cast<std::size_t>(copy.from_stride), bytes,
                                   static_cast<std::size_t>(copy.rows), kind, native(stream)),
                 "copying rows");
  }
  // A source that is not pinned has been taken by now; a target has not been given yet.
  if (copy.kind == CopyKind::kToHost && !is_pinned(copy.to)) synchronize(stream);
}

void fill(StreamState& stream, void* to, std::uint8_t value, std::int64_t bytes, std::int64_t rows,
          std::int64_t stride) {
  if (bytes == 0 || rows == 0) return;
  if (rows == 1) {
    check_device(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), native(stream)),
                 "filling memory");
  } else {
    check_device(cudaMemset2DAsync(to, static_cast<std::size_t>(stride), value,
                                   static_cast<std::size_t>(bytes), static_cast<std::size_t>(rows),
                                   native(stream)),
                 "filling rows");
  }
}

DeviceProperties properties(const Device& device) {
  cudaDeviceProp found{};
  check_device(cudaGetDeviceProperties(&found, device.index), "asking what the device is");
  return {.name = found.name,
          .memory_bytes = static_cast<std::int64_t>(found.totalGlobalMem),
          .shared_bytes_per_block = static_cast<std::int64_t>(found.sharedMemPerBlockOptin),
          .multiprocessors = found.multiProcessorCount,
          .compute_capability = found.major * 10 + found.minor};
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace coppice::cuda
