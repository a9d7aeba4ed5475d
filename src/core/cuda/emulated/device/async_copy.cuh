#pragma once
// Copies to shared memory that run while the thread goes on, as real/device/async_copy.cuh has
// them. Their target holds NaN until the thread that issued them waits.
#include "device/launch.cuh"

namespace coppice::device {

inline void copy_async_16(void* shared, const void* global, bool valid,
                          std::source_location place = std::source_location::current()) {
  emulated::copy_async_16(shared, global, valid, place);
}
inline void commit_copies() { emulated::commit_copies(); }
template <int kPending>
void wait_copies() {
  emulated::wait_copies(kPending);
}

}  // namespace coppice::device
