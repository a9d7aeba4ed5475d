#pragma once
// All bytes the program computes with come from a Memory: it allocates Buffers on one device and
// keeps the account of them, by name, that `coppice plan` predicts and the metrics report.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/cpu/huge_blocks.hpp"
#include "core/device.hpp"
#include "core/stream.hpp"

namespace coppice {

class Memory;

/// How long a buffer lasts, as far as its owner knows.
enum class Lifetime {
  kAny,
  kRun,  ///< about as long as the Memory: it may share a block with others, which ends with the last
};

/// Owns bytes on a device; gives them back, and off the account, when it ends.
///
/// Memory    aligned to 64 bytes (256 on CUDA); blocks of 4 MiB and more ask for huge pages
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { release(); }

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class Memory;
  Buffer(Memory& memory, std::byte* data, std::int64_t bytes, std::int64_t* account)
      : memory_(&memory), data_(data), bytes_(bytes), account_(account) {}
  void release();

  Memory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t* account_ = nullptr;
};

/// The account of one device's memory. Outlives every Buffer it gave. Not thread-safe: tensors are
/// made by the thread that runs the step.
///
/// On CUDA a Memory belongs to a stream, and blocks come and go in that stream's order: work enqueued
/// on it before a Buffer ends may still use the block, and nothing waits. Other streams say by Events
/// when they may start with a block and that they are done with it.
class Memory {
 public:
  /// The CPU's.
  explicit Memory(Device device);
  /// That of the stream's device. `order` outlives this.
  explicit Memory(Stream& order) : device_(order.device()), order_(&order) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Errors    DeviceError when the system has no such block left
  Buffer allocate(std::int64_t bytes, std::string_view name,
                  Lifetime lifetime = Lifetime::kAny);

  /// Fills bytes with a NaN pattern, where the build is made to.
  void poison(std::byte* data, std::int64_t bytes);

  const Device& device() const { return device_; }
  /// The stream that blocks come and go on; null on the CPU.
  Stream* order() const { return order_; }
  std::int64_t current_bytes() const { return current_; }
  std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = current_; }
  /// Bytes now held, by the name given at allocation.
  const std::map<std::string, std::int64_t, std::less<>>& by_name() const { return by_name_; }

 private:
  friend class Buffer;
  std::byte* take(std::int64_t bytes, Lifetime lifetime);
  void give_back(std::byte* data);

  Device device_;
  Stream* order_ = nullptr;  // where blocks come and go on CUDA
  cpu::HugeBlocks run_;      // what lives for the run, on the CPU
  std::int64_t current_ = 0;
  std::int64_t peak_ = 0;
  std::map<std::string, std::int64_t, std::less<>> by_name_;
};

}  // namespace coppice
