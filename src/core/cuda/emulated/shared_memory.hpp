#pragma once
// The shared memory of the block that runs, with its shadow: for every two bytes who wrote them
// last and which lanes have read them since. Two bytes are the grain of the checks: one-byte
// elements would be told of races with their neighbours.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cuda/emulated/clocks.hpp"

namespace coppice::emulated {

class SharedMemory {
 public:
  /// Fresh contents, all bits set. With `shadow`, accesses can be checked.
  void reset(std::int64_t bytes, int warps, bool shadow);

  unsigned char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  /// In the block's memory or so near beside it that it can only be meant.
  bool is_near(const void* address) const;
  bool contains(const void* address, std::int64_t bytes) const;

  Finding read(const void* address, std::int64_t bytes, const Access& access);
  Finding write(const void* address, std::int64_t bytes, const Access& access);
  /// The bytes hold nothing until land_copy.
  void start_copy(const void* address, std::int64_t bytes);
  void land_copy(const void* address, std::int64_t bytes, const Access& access);

 private:
  struct Cell {
    Stamp write;
    bool copy_in_flight = false;
  };
  // The last read by a warp.
  struct Read {
    std::uint32_t clock = 0;
    std::uint16_t sync = 0;
    std::uint16_t lane = 0;  // kSeveralLanes since the same clock and sync
  };
  static constexpr std::uint16_t kSeveralLanes = kLanes;

  std::int64_t offset_of(const void* address) const;
  Finding check_read(std::int64_t cell, const Access& access);
  Finding check_write(std::int64_t cell, const Access& access);

  std::vector<unsigned char> memory_;
  unsigned char* data_ = nullptr;
  std::int64_t bytes_ = 0;
  int warps_ = 0;
  std::vector<Cell> cells_;
  std::vector<Read> reads_;  // [cell][warp]
};

}  // namespace coppice::emulated
