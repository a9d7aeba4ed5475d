#pragma once
// Host memory that stands for a GPU's. Every block is known, so that an access beside one, or to
// one given back, is an error that names it; fresh and freed bytes hold NaN in every float type,
// and which bytes hold anything at all is known too. Also the shadow in which accesses of a
// kernel's threads to these blocks are compared.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/emulated/clocks.hpp"
#include "core/cuda/emulated/guarded_region.hpp"

namespace coppice::emulated {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Memory    aligned to 256 bytes, all bits set; null for 0 bytes or where the host has no more
  std::byte* allocate(std::int64_t bytes);
  /// The same, but not in use before begin_use: until a stream has come to its allocation.
  std::byte* reserve(std::int64_t bytes);
  void begin_use(std::byte* block);
  /// Errors    DeviceError for what is not the begin of a block in use
  void release(std::byte* block);

  /// Empty where [address, address + bytes) lies in one block in use; else says what is wrong, as
  /// the end of a sentence about the access.
  std::string problem_with(const void* address, std::int64_t bytes) const;
  /// Its bytes may be touched while an Opened of this lives: while work of the device runs.
  GuardedRegion& pages() { return pages_; }
  /// Of the block that begins there, in use or not; 0 where none does.
  std::int64_t bytes_of(const std::byte* block) const;
  std::int64_t bytes_in_use() const { return bytes_in_use_; }

  /// The bytes hold something from now on, or nothing. In a block in use, as those below.
  void note_contents(const void* address, std::int64_t bytes, bool hold = true);
  /// As many bytes as at `from` hold something, and no others.
  void note_copy(const void* to, const void* from, std::int64_t bytes);
  bool holds_contents(const void* address, std::int64_t bytes) const;

  /// One access by a thread of block `block` of launch `launch`, to bytes in a block in use.
  Finding read(const void* address, std::int64_t bytes, const Access& access);
  Finding write(const void* address, std::int64_t bytes, const Access& access);

  int watch(const void* begin, std::int64_t bytes);
  void end_watch(int watch);
  std::int64_t unwritten_bytes(int watch) const;
  /// False if a watched byte was written before.
  bool note_write(const void* address, std::int64_t bytes);

 private:
  // What is known of two bytes since the launch began.
  struct Cell {
    std::uint32_t launch = 0;
    std::int32_t write_block = -1, read_block = -1;  // -1 none; a reader of -2: several blocks
    Stamp write{}, read{};
  };
  struct Block {
    std::int64_t bytes = 0;
    bool in_use = true;
    bool reserved = false;         // its stream has not come to the allocation
    std::vector<bool> contents{};  // for every two bytes: whether anything was written there
    std::vector<Cell> cells{};     // made by the first access that is checked
  };
  struct Watch {
    std::uintptr_t begin;
    std::vector<bool> written;
  };
  using Blocks = std::map<std::uintptr_t, Block>;

  const Blocks::value_type* find(std::uintptr_t address) const;
  Block& block_at(const void* address);
  template <class F>
  Finding for_cells(const void* address, std::int64_t bytes, const Access& access, F&& f);
  void forget_oldest();

  GuardedRegion pages_;
  Blocks blocks_;
  // Where the last access was; most accesses of a kernel are near the one before.
  mutable const Blocks::value_type* last_ = nullptr;
  std::deque<std::uintptr_t> freed_;  // oldest first; kept so that a late access is recognised
  std::int64_t bytes_freed_ = 0, bytes_in_use_ = 0;
  std::map<int, Watch> watches_;
  int next_watch_ = 0;
};

}  // namespace coppice::emulated
