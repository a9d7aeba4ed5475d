#pragma once
// All bytes the program computes with come from a Memory: it allocates Buffers on one device and
// keeps the account of them, by name, that `coppice plan` predicts and the metrics report.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/device.hpp"

namespace coppice {

class Memory;

/// Owns bytes on a device; gives them back, and off the account, when it ends.
///
/// Memory    aligned to 64 bytes; blocks of 4 MiB and more ask for huge pages
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
class Memory {
 public:
  explicit Memory(Device device) : device_(device) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Errors    DeviceError when the system has no such block left
  Buffer allocate(std::int64_t bytes, std::string_view name);

  const Device& device() const { return device_; }
  std::int64_t current_bytes() const { return current_; }
  std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = current_; }
  /// Bytes now held, by the name given at allocation.
  const std::map<std::string, std::int64_t, std::less<>>& by_name() const { return by_name_; }

 private:
  friend class Buffer;
  Device device_;
  std::int64_t current_ = 0;
  std::int64_t peak_ = 0;
  std::map<std::string, std::int64_t, std::less<>> by_name_;
};

}  // namespace coppice
