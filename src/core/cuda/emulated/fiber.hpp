#pragma once
// Stacks to run a block's threads on, one at a time in one thread of the host, and the few
// instructions that go from one to another. Knows nothing of kernels. Written for x86-64.
#include <cstddef>

namespace coppice::emulated {

/// Keeps the running stack's pointer in *save and goes on where `load` was kept.
extern "C" void coppice_switch_stack(void** save, void* load);

class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  /// A pointer that switching to calls `entry`, on stack `i`. `entry` never returns.
  void* prepare(int i, void (*entry)());
  /// Whose stack the address is in; -1 for none.
  int owner_of(const void* address) const;

 private:
  std::byte* memory_ = nullptr;  // reserved by the first use
};

}  // namespace coppice::emulated
