#pragma once
// The few calls of the CUDA runtime that this program makes, as plain functions. They exist twice:
// runtime.cpp calls CUDA, emulated/runtime.cpp is the emulated device. Nothing else in the program
// calls the CUDA runtime, but the launch in device/launch.cuh.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/stream.hpp"

namespace coppice::cuda {

/// Memory of the device, in the stream's order: valid for work enqueued on it afterwards.
/// nullptr where the device has no such block left. Aligned to 256 bytes.
std::byte* allocate(StreamState& stream, std::int64_t bytes);
/// In the stream's order: work enqueued on it before may still use the block.
void free(StreamState& stream, std::byte* block);

/// Host memory that copies reach without the host's help.
std::byte* allocate_pinned(std::int64_t bytes);
void free_pinned(std::byte* block);

enum class CopyKind { kOnDevice, kToDevice, kToHost };
/// `rows` runs of `bytes` bytes. Enqueues where both sides are the device's or pinned; else the host
/// side is done with when it returns, which for kToHost means that the host has waited.
struct Copy {
  CopyKind kind;
  void* to;
  const void* from;
  std::int64_t bytes;
  std::int64_t rows = 1;
  std::int64_t to_stride = 0;    ///< bytes from row to row
  std::int64_t from_stride = 0;  ///< bytes from row to row
};
void copy(StreamState& stream, const Copy& copy);
/// Sets every byte.
void fill(StreamState& stream, void* to, std::uint8_t value, std::int64_t bytes);

/// Blocks the host until all work of all streams is done.
void synchronize_device(const Device& device);

struct DeviceProperties {
  std::string name;  ///< says so where the device is emulated
  std::int64_t memory_bytes;
  std::int64_t shared_bytes_per_block;  ///< the most that a launch may ask for
  int multiprocessors;
  int compute_capability;  ///< 80, 90, ...
};
DeviceProperties properties(const Device& device);
/// 0 where the machine has none, or no driver.
int device_count();

}  // namespace coppice::cuda
