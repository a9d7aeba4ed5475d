// Replaces `new` and `delete` of the program it is linked into, as the standard allows. All forms
// that do not ask for an alignment, since what one form takes another may give back. The counter is
// global because they are.
#include "support/allocation_watch.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace coppice::test {
namespace {

std::atomic<std::size_t> largest = 0;

}  // namespace

std::size_t largest_allocation() { return largest; }
void forget_allocations() { largest = 0; }

namespace {

void* allocated(std::size_t bytes) {
  std::size_t before = largest;
  while (bytes > before && !largest.compare_exchange_weak(before, bytes)) {
  }
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace
}  // namespace coppice::test

void* operator new(std::size_t bytes) { return coppice::test::allocated(bytes); }
void* operator new[](std::size_t bytes) { return coppice::test::allocated(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return coppice::test::allocated(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& none) noexcept {
  return operator new(bytes, none);
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { std::free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { std::free(block); }
