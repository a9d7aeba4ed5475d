#include "core/cuda/emulated/gpu.hpp"

namespace coppice::emulated {

// The one global here: the hooks that the compiler puts before a kernel's loads and stores get an
// address and nothing else, so the hardware must be found without being handed on.
Gpu& gpu() {
  static Gpu device;
  return device;
}

WriteWatch::WriteWatch(const void* begin, std::int64_t bytes)
    : watch_(gpu().memory.watch(begin, bytes)) {}
WriteWatch::~WriteWatch() { gpu().memory.end_watch(watch_); }

}  // namespace coppice::emulated
