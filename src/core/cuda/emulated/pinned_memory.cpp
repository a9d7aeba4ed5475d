#include "core/cuda/emulated/pinned_memory.hpp"

#include <cstdlib>
#include <cstring>

#include "core/error.hpp"

namespace coppice::emulated {
namespace {

constexpr int kPoison = 0xff;  // NaN in every float type
std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

PinnedMemory::~PinnedMemory() {
  for (const auto& [begin, block] : blocks_) std::free(reinterpret_cast<void*>(begin));
}

std::byte* PinnedMemory::allocate(std::int64_t bytes) {
  auto* block = static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(bytes)));
  if (block == nullptr) return nullptr;
  std::memset(block, kPoison, static_cast<std::size_t>(bytes));
  blocks_[number(block)] = {bytes};
  return block;
}

void PinnedMemory::release(std::byte* block) {
  if (block == nullptr) return;
  const auto found = blocks_.find(number(block));
  if (found == blocks_.end() || !found->second.in_use) {
    throw DeviceError(fmt::format(
        "{} is given back to pinned memory, but {} (a block has one owner). Look for a second "
        "release of it.",
        fmt::ptr(block), found == blocks_.end() ? "was never allocated" : "is free already"));
  }
  std::memset(block, kPoison, static_cast<std::size_t>(found->second.bytes));
  found->second.in_use = false;
}

const PinnedMemory::Blocks::value_type* PinnedMemory::find(const void* address) const {
  const auto behind = blocks_.upper_bound(number(address));
  if (behind == blocks_.begin()) return nullptr;
  const auto& block = *std::prev(behind);
  return number(address) < block.first + static_cast<std::uintptr_t>(block.second.bytes) ? &block
                                                                                         : nullptr;
}

void PinnedMemory::check(const char* what, const void* address, std::int64_t bytes) const {
  const auto* block = find(address);
  if (block == nullptr ||
      number(address) + static_cast<std::uintptr_t>(bytes) >
          block->first + static_cast<std::uintptr_t>(block->second.bytes)) {
    throw DeviceError(
        fmt::format("{} reaches {} bytes at {}, which pinned memory does not hold whole (the device "
                    "would read or write beside it). Check the extents of the copy.",
                    what, bytes, fmt::ptr(address)));
  }
  if (!block->second.in_use) {
    throw DeviceError(
        fmt::format("{} reaches {} bytes of a pinned block that was given back (a copy runs when the "
                    "device gets to it). Wait for the copy before the block ends.",
                    what, bytes));
  }
}

}  // namespace coppice::emulated
