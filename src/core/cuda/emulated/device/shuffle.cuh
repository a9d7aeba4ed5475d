#pragma once
// What the 32 lanes of a warp do together, as real/device/shuffle.cuh has it.
#include "device/launch.cuh"

namespace coppice::device {

inline constexpr int kWarpSize = 32;

template <class T>
T warp_shuffle(T value, int source, std::source_location place = std::source_location::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated::shuffle(bits, source, place);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T warp_shuffle_xor(T value, int mask,
                   std::source_location place = std::source_location::current()) {
  return warp_shuffle(value, emulated::lane() ^ mask, place);
}

template <class T>
T warp_shuffle_down(T value, int distance,
                    std::source_location place = std::source_location::current()) {
  const int source = emulated::lane() + distance;
  return warp_shuffle(value, source < kWarpSize ? source : emulated::lane(), place);
}

inline void sync_warp(std::source_location place = std::source_location::current()) {
  emulated::sync_warp(place);
}

}  // namespace coppice::device
