#include "core/cuda/emulated/fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

// Pushes the registers that a function must keep for its caller, changes the stack, takes back
// those of the other.
asm(R"(
.text
.globl coppice_switch_stack
.type coppice_switch_stack, @function
coppice_switch_stack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size coppice_switch_stack, .-coppice_switch_stack
)");

namespace coppice::emulated {
namespace {

constexpr std::size_t kStacks = 1024;  // threads of the largest block
constexpr std::size_t kPage = 4096;
constexpr std::size_t kStride = 26 * kPage;  // a stack and, below it, a page that stops an overflow
constexpr int kSavedRegisters = 6;

}  // namespace

StackPool::~StackPool() {
  if (memory_ != nullptr) munmap(memory_, kStacks * kStride);
}

void* StackPool::prepare(int i, void (*entry)()) {
  if (memory_ == nullptr) {
    void* memory = mmap(nullptr, kStacks * kStride, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    for (std::size_t k = 0; k < kStacks; ++k) mprotect(memory_ + k * kStride, kPage, PROT_NONE);
  }
  const auto index = static_cast<std::size_t>(i);
  // Tops a page apart would share cache sets: 1024 threads then work in a few lines of the cache.
  const std::size_t shift = 64 * (1 + index % 61);
  auto** top = reinterpret_cast<void**>(memory_ + (index + 1) * kStride - shift);
  *--top = nullptr;  // where `entry` would return to
  *--top = reinterpret_cast<void*>(entry);
  return top - kSavedRegisters;
}

int StackPool::owner_of(const void* address) const {
  const auto offset = static_cast<std::uintptr_t>(static_cast<const std::byte*>(address) - memory_);
  return memory_ == nullptr || offset >= kStacks * kStride ? -1
                                                           : static_cast<int>(offset / kStride);
}

}  // namespace coppice::emulated
