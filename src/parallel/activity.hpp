#pragma once
// What a rank is doing, in words for a message about a job that hangs or fails. Whoever drives the
// work keeps it up to date; communicators only read it.
#include <cstdint>

namespace coppice {

struct Activity {
  std::int64_t step = 0;        ///< 0: before the first
  const char* phase = "start";  ///< a literal: "forward", "backward", "optimizer", ...
  std::int32_t layer = -1;      ///< -1: outside of the blocks
};

}  // namespace coppice
