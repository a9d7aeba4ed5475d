#pragma once
// The few calls of the CUDA runtime that this program makes, as plain functions. They exist twice:
// runtime.cpp calls CUDA, emulated/runtime.cpp is the emulated device. Nothing else in the program
// calls the CUDA runtime, but the launch in device/launch.cuh. Streams and events are declared in
// core/stream.hpp, for whoever has a Stream.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/stream.hpp"

namespace coppice::cuda {

/// What a part of core/cuda/ keeps with a stream: made at its first use, ended with the stream.
struct Attachment {
  virtual ~Attachment() = default;
};

/// Looks on while the host waits for a stream whose work may depend on other processes.
struct WaitObserver {
  virtual ~WaitObserver() = default;
  /// Called every few milliseconds of a wait, and once behind it; throws where the work was in
  /// vain.
  virtual void look() = 0;
};

struct StreamState {
  Device device;
  void* native = nullptr;                  // a cudaStream_t, or the emulated device's queue
  std::unique_ptr<Attachment> products;    // gemm.cpp
  std::unique_ptr<Attachment> staging;     // upload.cpp
  std::shared_ptr<WaitObserver> observer;  // parallel/nccl
};

/// Memory of the device, in the stream's order: valid for work enqueued on it afterwards.
/// nullptr where the device has no such block left. Aligned to 256 bytes.
std::byte* allocate(StreamState& stream, std::int64_t bytes);
/// In the stream's order: work enqueued on it before may still use the block.
void free(StreamState& stream, std::byte* block);

/// Host memory that copies reach without the host's help. Not to be given back before they are
/// done.
std::byte* allocate_pinned(std::int64_t bytes);
void free_pinned(std::byte* block);

enum class CopyKind { kOnDevice, kToDevice, kToHost };
/// `rows` runs of `bytes` bytes each.
struct Copy {
  CopyKind kind;
  void* to;
  const void* from;
  std::int64_t bytes;
  std::int64_t rows = 1;
  std::int64_t to_stride = 0;    ///< bytes from row to row
  std::int64_t from_stride = 0;  ///< bytes from row to row
};
/// Enqueues where both sides are the device's or pinned. Other host memory is done with when this
/// returns; for kToHost that means that the host has waited for the stream.
void copy(StreamState& stream, const Copy& copy);
/// Sets every byte of `rows` runs of `bytes` bytes.
void fill(StreamState& stream, void* to, std::uint8_t value, std::int64_t bytes,
          std::int64_t rows = 1, std::int64_t stride = 0);

/// A point in a stream's work that notes the time when the device passes it.
struct TimeMark;
struct EndTimeMark {
  void operator()(TimeMark* mark) const;
};
using TimeMarkPtr = std::unique_ptr<TimeMark, EndTimeMark>;
TimeMarkPtr mark_time(StreamState& stream);
/// Blocks the host until the device has passed `end`. Emulated, it is the host's time.
double seconds_between(const TimeMark& begin, const TimeMark& end);

/// Hands memory back to the driver that was freed, once all work is done. For programs that need
/// blocks of other sizes afterwards.
void release_unused(const Device& device);

/// Blocks the host until all work of all streams is done.
void synchronize_device(const Device& device);

struct DeviceProperties {
  std::string name;  ///< says so where the device is emulated
  std::int64_t memory_bytes;
  std::int64_t shared_bytes_per_block;  ///< the most that a launch may ask for
  int multiprocessors;
  int compute_capability;  ///< 80, 90, ...
};
/// Errors    DeviceError where the machine has no such device
DeviceProperties properties(const Device& device);
/// 0 where the machine has none, or no driver.
int device_count();

}  // namespace coppice::cuda
