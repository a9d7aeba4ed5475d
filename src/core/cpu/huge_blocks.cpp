#include "core/cpu/huge_blocks.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace coppice::cpu {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kHugeFrom = 4 << 20;
constexpr std::int64_t kAlignment = 64;

}  // namespace

std::byte* allocate_block(std::int64_t bytes) {
  const bool huge = bytes >= kHugeFrom;
  const auto alignment = static_cast<std::size_t>(huge ? kHugePage : kAlignment);
  const auto size = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, size);
  // Advice only: where huge pages are off the block works all the same.
  if (data != nullptr && huge) madvise(data, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

HugeBlocks::~HugeBlocks() {
  for (const Block& block : blocks_) std::free(block.begin);
}

std::byte* HugeBlocks::take(std::int64_t bytes) {
  const auto size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || blocks_.back().used + size > kBlock) {
    std::byte* begin = allocate_block(kBlock);
    if (begin == nullptr) return nullptr;
    blocks_.push_back({begin, 0, 0});
  }
  Block& block = blocks_.back();
  std::byte* place = block.begin + block.used;
  block.used += size;
  ++block.places;
  return place;
}

bool HugeBlocks::give_back(const std::byte* place) {
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return place >= b.begin && place < b.begin + kBlock;
  });
  if (block == blocks_.end()) return false;
  if (--block->places == 0) {
    std::free(block->begin);
    blocks_.erase(block);
  }
  return true;
}

}  // namespace coppice::cpu
