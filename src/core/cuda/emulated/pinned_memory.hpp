#pragma once
// Pinned host memory of the emulated device: which addresses are pinned decides whether a copy may
// run later, and a block given back too early must be noticed. Bytes are poisoned as the device's.
#include <cstddef>
#include <cstdint>
#include <map>

namespace coppice::emulated {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* allocate(std::int64_t bytes);
  /// Errors    DeviceError for what is not the begin of a block in use
  void release(std::byte* block);
  /// Whether `address` lies in a block, in use or given back.
  bool holds(const void* address) const { return find(address) != nullptr; }
  /// Errors    DeviceError unless [address, address + bytes) lies in one block in use
  void check(const char* what, const void* address, std::int64_t bytes) const;

 private:
  struct Block {
    std::int64_t bytes;
    bool in_use = true;
  };
  using Blocks = std::map<std::uintptr_t, Block>;
  const Blocks::value_type* find(const void* address) const;

  Blocks blocks_;  // those given back stay, so that no later block gets their addresses
};

}  // namespace coppice::emulated
