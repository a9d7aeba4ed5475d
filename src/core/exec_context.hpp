#pragma once
// What every op is handed first: where it runs, in which order, with how many threads and which
// scratch, and who wants to know of it. There is no current device or stream; this is the only way
// to learn them.
#include "core/arena.hpp"
#include "core/device.hpp"
#include "core/memory.hpp"
#include "core/stream.hpp"
#include "core/trace.hpp"

namespace coppice {

struct ExecContext {
  Stream& stream;
  Memory& memory;
  Arena& scratch;
  int threads = 1;
  Trace* trace = nullptr;  ///< where the run is traced

  const Device& device() const { return stream.device(); }
};

}  // namespace coppice
