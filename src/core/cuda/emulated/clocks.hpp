#pragma once
// Which of two accesses of a block's threads comes before the other, whatever the schedule: a
// vector clock per warp, moved on by barriers, and a count of sync_warp within a warp. Two accesses
// that no clock orders, one of them a write, are a race.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace coppice::emulated {

inline constexpr int kLanes = 32;
inline constexpr int kMaxWarps = 32;

/// When an access happened. Not happened: clock 0.
struct Stamp {
  std::uint32_t clock = 0;
  std::uint16_t thread = 0;
  std::uint16_t sync = 0;  // the warp's count of sync_warp
  std::int32_t code = 0;   // where in the program (code_offset)
};

/// An access that is being checked.
struct Access {
  Stamp stamp;
  std::int32_t block = 0;
  std::uint32_t launch = 0;
  const class Clocks* clocks = nullptr;
};

/// What a check found.
struct Finding {
  enum Kind {
    kNothing,
    kRaceWithWrite,  ///< another thread wrote, nothing orders the two
    kRaceWithRead,   ///< another thread read what is now written
    kOtherBlock,     ///< another block of the grid wrote, or read what is now written
    kNeverWritten,   ///< a read of shared memory that nothing wrote
    kCopyNotLanded,  ///< an asynchronous copy to there has not been waited for
  };
  Kind kind = kNothing;
  Stamp other;  // of the access that disagrees
  std::int64_t offset = 0;
  explicit operator bool() const { return kind != kNothing; }
};

class Clocks {
 public:
  void reset(int warps);
  int warps() const { return warps_; }

  Stamp stamp(int thread, std::int32_t code) const {
    const auto& warp = clock_[static_cast<std::size_t>(thread / kLanes)];
    return {warp.seen[static_cast<std::size_t>(thread / kLanes)],
            static_cast<std::uint16_t>(thread), warp.sync, code};
  }
  /// Whether what happened at `then` comes before what `thread` does now.
  bool ordered(const Stamp& then, int thread) const {
    if (then.thread == thread) return true;
    const auto warp = static_cast<std::size_t>(thread / kLanes);
    const auto other = static_cast<std::size_t>(then.thread / kLanes);
    if (other == warp)
      return then.sync != clock_[warp].sync || then.clock < clock_[warp].seen[warp];
    return then.clock <= clock_[warp].seen[other];
  }

  void meet(std::span<const int> threads);
  void sync_warp(int warp) { ++clock_[static_cast<std::size_t>(warp)].sync; }

 private:
  struct Warp {
    std::array<std::uint32_t, kMaxWarps> seen{};  // the latest of each warp that is before now
    std::uint16_t sync = 0;
  };
  std::array<Warp, kMaxWarps> clock_;
  int warps_ = 0;
};

}  // namespace coppice::emulated
