// The CUDA runtime's calls on a real device.
#include "core/cuda/runtime.hpp"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>

#include "core/cuda/launch_support.hpp"

namespace coppice::cuda {
namespace {

// CUDA's current device belongs to the calling thread and begins as device 0 in each; launches and
// new events are refused where it is not the stream's. So it is set before every call, which costs
// less than remembering it would gain.
cudaStream_t native(StreamState& stream) {
  cudaSetDevice(stream.device.index);  // fails as what follows will
  return static_cast<cudaStream_t>(stream.native);
}

// What to do about an error, where that can be told.
const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
      return " (a kernel enqueued before did it, and the device is lost to this process). Run "
             "again "
             "with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to see which.";
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorUnsupportedPtxVersion:
      return " (the driver is older than this build's CUDA runtime needs). Update the driver; "
             "nvidia-smi shows its version.";
    case cudaErrorNoKernelImageForDevice:
      return " (the program holds code for compute capability 8.0 and 9.0, and PTX for later "
             "ones). "
             "Use such a GPU.";
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
      return " (the process sees no such GPU, or may not use it). Look at nvidia-smi and "
             "CUDA_VISIBLE_DEVICES.";
    case cudaErrorMemoryAllocation:
      return " (the GPU's memory is taken, perhaps by another process). Look at nvidia-smi.";
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
      return " (a block with so many threads or so much shared memory does not fit this GPU). "
             "Report "
             "it with the GPU's name.";
    default:
      return ".";
  }
}

bool is_pinned(const void* host) {
  cudaPointerAttributes attributes{};
  check_device(cudaPointerGetAttributes(&attributes, host), "asking what an address is");
  return attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

struct EventState {
  cudaEvent_t native = nullptr;
  std::shared_ptr<WaitObserver> observer{};
};

namespace {

// Until `query` says that it is done: by polling, so that the observer can look.
template <class Query>
void wait_observed(WaitObserver& observer, const Query& query, const char* action) {
  constexpr int kSpins = 200;
  constexpr std::chrono::milliseconds kBetweenLooks(5), kShortWait(1);
  constexpr std::chrono::microseconds kPause(20);
  const auto start = std::chrono::steady_clock::now();
  auto looked = start;
  for (int poll = 0;; ++poll) {
    const cudaError_t code = query();
    if (code == cudaSuccess) break;
    if (code != cudaErrorNotReady) {
      observer.look();  // it may know the reason
      check_device(code, action);
    }
    if (poll < kSpins) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now - start > kShortWait) std::this_thread::sleep_for(kPause);
    if (now - looked < kBetweenLooks) continue;
    looked = now;
    observer.look();
  }
  observer.look();
}

}  // namespace

struct TimeMark {
  cudaEvent_t native;
};

void check_device(int code, const char* action) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next launch would report this one
  throw DeviceError(fmt::format("CUDA failed while {}: {}, {}{}", action, cudaGetErrorName(error),
                                cudaGetErrorString(error), advice(error)));
}

void* native_stream(Stream& stream) { return native(stream.state()); }
void* native_stream(StreamState& stream) { return native(stream); }

StreamState* begin_stream(const Device& device) {
  check_device(cudaSetDevice(device.index), "choosing the device");
  // Memory given back stays with the process: asking the driver again would wait for the device.
  cudaMemPool_t pool = nullptr;
  check_device(cudaDeviceGetDefaultMemPool(&pool, device.index), "finding the memory pool");
  auto keep = std::numeric_limits<std::uint64_t>::max();
  check_device(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
               "setting up the memory pool");
  cudaStream_t stream = nullptr;
  check_device(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return new StreamState{device, stream, nullptr, nullptr, nullptr};
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
  cudaStream_t of = native(stream);  // an event is one of the current device
  auto state = std::make_unique<EventState>();
  check_device(cudaEventCreateWithFlags(&state->native, cudaEventDisableTiming), "making an event");
  state->observer = stream.observer;
  check_device(cudaEventRecord(state->native, of), "recording an event");
  return state.release();
}
void end(EventState* event) {
  cudaEventDestroy(event->native);
  delete event;
}
bool is_past(const EventState& event) {
  const cudaError_t code = cudaEventQuery(event.native);
  if (code == cudaErrorNotReady) return false;
  check_device(code, "asking for an event");
  return true;
}
void wait(const EventState& event) {
  if (event.observer) {
    const auto query = [&] { return cudaEventQuery(event.native); };
    return wait_observed(*event.observer, query, "waiting for an event");
  }
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
  if (stream.observer) {
    const auto query = [&] { return cudaStreamQuery(native(stream)); };
    return wait_observed(*stream.observer, query, "waiting for a stream");
  }
  check_device(cudaStreamSynchronize(native(stream)), "waiting for a stream");
}
void synchronize_device(const Device& device) {
  check_device(cudaSetDevice(device.index), "choosing the device");
  check_device(cudaDeviceSynchronize(), "waiting for the device");
}

void release_unused(const Device& device) {
  synchronize_device(device);
  cudaMemPool_t pool = nullptr;
  check_device(cudaDeviceGetDefaultMemPool(&pool, device.index), "finding the memory pool");
  check_device(cudaMemPoolTrimTo(pool, 0), "giving back memory");
}

std::byte* allocate(StreamState& stream, std::int64_t bytes) {
  void* block = nullptr;
  const auto error = cudaMallocAsync(&block, static_cast<std::size_t>(bytes), native(stream));
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
  // CUDA waits itself where a copy's host memory is not pinned, and nobody could look on.
  if (stream.observer && copy.kind != CopyKind::kOnDevice &&
      !is_pinned(copy.kind == CopyKind::kToHost ? copy.to : copy.from)) {
    synchronize(stream);
  }
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
  // Of host memory that is not pinned, CUDA promises no more than that the copy "might be
  // synchronous" (driver API, API synchronization behavior): where the GPU reads such memory by
  // itself, it need not be.
  if (copy.kind == CopyKind::kToHost && !is_pinned(copy.to)) synchronize(stream);
  if (copy.kind == CopyKind::kToDevice && !is_pinned(copy.from)) synchronize(stream);
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
