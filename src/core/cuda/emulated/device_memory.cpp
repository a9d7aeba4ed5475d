#include "core/cuda/emulated/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.hpp"

namespace coppice::emulated {
namespace {

constexpr std::int64_t kAlignment = 256;
// Between blocks, so that an access a little beside one is never in another.
constexpr std::int64_t kGap = 4096 + kAlignment;  // and no more aligned than a GPU's blocks are
constexpr std::int64_t kKeepFreed = 64 << 20;
constexpr std::int64_t kGrain = 2;  // bytes that share a cell of the shadow
constexpr int kPoison = 0xff;       // NaN in every float type
constexpr std::int32_t kSeveralBlocks = -2;

std::int64_t cells_in(std::int64_t bytes) { return (bytes + kGrain - 1) / kGrain; }
std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }
std::byte* pointer(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

std::byte* DeviceMemory::allocate(std::int64_t bytes) {
  if (bytes <= 0) return nullptr;
  const Opened opened(pages_);
  std::byte* memory = pages_.take(bytes + 2 * kGap);
  if (memory == nullptr) return nullptr;
  std::byte* begin = memory + kGap;
  std::memset(begin, kPoison, static_cast<std::size_t>(bytes));
  blocks_[number(begin)] = {
      .bytes = bytes, .contents = std::vector<bool>(static_cast<std::size_t>(cells_in(bytes)))};
  bytes_in_use_ += bytes;
  return begin;
}

std::byte* DeviceMemory::reserve(std::int64_t bytes) {
  std::byte* block = allocate(bytes);
  if (block != nullptr) blocks_[number(block)].reserved = true;
  return block;
}

void DeviceMemory::begin_use(std::byte* block) { blocks_[number(block)].reserved = false; }

std::int64_t DeviceMemory::bytes_of(const std::byte* block) const {
  const auto found = blocks_.find(number(block));
  return found == blocks_.end() ? 0 : found->second.bytes;
}

void DeviceMemory::release(std::byte* block) {
  if (block == nullptr) return;
  const auto found = blocks_.find(number(block));
  if (found == blocks_.end() || !found->second.in_use || found->second.reserved) {
    throw DeviceError(fmt::format(
        "{} is given back to the device's memory, but {} (a buffer has one owner). Look for a "
        "second release of it, or one on another stream.",
        fmt::ptr(block),
        found == blocks_.end()   ? "was never allocated"
        : found->second.reserved ? "its stream has not yet allocated it"
                                 : "is free already"));
  }
  Block& entry = found->second;
  const Opened opened(pages_);
  std::memset(block, kPoison, static_cast<std::size_t>(entry.bytes));
  entry.in_use = false;
  entry.cells = {};
  entry.contents = {};
  bytes_in_use_ -= entry.bytes;
  bytes_freed_ += entry.bytes;
  freed_.push_back(found->first);
  while (bytes_freed_ > kKeepFreed) forget_oldest();
}

void DeviceMemory::forget_oldest() {
  const auto found = blocks_.find(freed_.front());
  freed_.pop_front();
  const auto bytes = found->second.bytes;
  std::byte* begin = pointer(found->first);
  const Opened opened(pages_);
  const bool intact = std::all_of(begin, begin + bytes,
                                  [](std::byte value) { return value == std::byte{kPoison}; });
  bytes_freed_ -= bytes;
  if (last_ == &*found) last_ = nullptr;
  blocks_.erase(found);
  pages_.give_back(begin - kGap, bytes + 2 * kGap);
  if (!intact) {
    throw DeviceError(fmt::format(
        "a block of {} bytes of the device's memory was written after it was given back (the bytes "
        "may be another tensor's by then). Wait for the work that uses a buffer before it ends.",
        bytes));
  }
}

const DeviceMemory::Blocks::value_type* DeviceMemory::find(std::uintptr_t address) const {
  if (last_ == nullptr || address - last_->first >= std::uintptr_t(last_->second.bytes)) {
    const auto behind = blocks_.upper_bound(address);
    if (behind == blocks_.begin()) return nullptr;
    last_ = &*std::prev(behind);
  }
  return last_;
}

std::string DeviceMemory::problem_with(const void* address, std::int64_t bytes) const {
  const auto* found = find(number(address));
  const auto offset = found ? std::int64_t(number(address) - found->first) : 0;
  if (found == nullptr || offset > found->second.bytes + kGap) {
    return "not in the device's memory";
  }
  const Block& block = found->second;
  if (offset + bytes > block.bytes) {
    return fmt::format("bytes {} to {} of a block of {} bytes", offset, offset + bytes,
                       block.bytes);
  }
  if (block.reserved) {
    return fmt::format(
        "in a block of {} bytes that its stream has not yet allocated (another stream "
        "waits for an event of that one first)",
        block.bytes);
  }
  return block.in_use ? "" : fmt::format("in a block of {} bytes that was given back", block.bytes);
}

// The map's entries are ours to change; find() is const for the questions about them.
DeviceMemory::Block& DeviceMemory::block_at(const void* address) {
  return blocks_.find(find(number(address))->first)->second;
}

void DeviceMemory::note_contents(const void* address, std::int64_t bytes, bool hold) {
  if (bytes <= 0) return;
  const auto offset = std::int64_t(number(address) - find(number(address))->first);
  auto& contents = block_at(address).contents;
  std::fill(contents.begin() + offset / kGrain, contents.begin() + cells_in(offset + bytes), hold);
}

void DeviceMemory::note_copy(const void* to, const void* from, std::int64_t bytes) {
  const auto target = std::int64_t(number(to) - find(number(to))->first) / kGrain;
  auto& contents = block_at(to).contents;
  const auto source = std::int64_t(number(from) - find(number(from))->first) / kGrain;
  const auto& of_source = block_at(from).contents;
  std::copy_n(of_source.begin() + source, cells_in(bytes), contents.begin() + target);
}

bool DeviceMemory::holds_contents(const void* address, std::int64_t bytes) const {
  const auto& [begin, block] = *find(number(address));
  const auto offset = std::int64_t(number(address) - begin);
  const auto first = block.contents.begin() + offset / kGrain,
             last = block.contents.begin() + cells_in(offset + bytes);
  return std::find(first, last, false) == last;
}

template <class F>
Finding DeviceMemory::for_cells(const void* address, std::int64_t bytes, const Access& access,
                                F&& f) {
  const auto* found = find(number(address));
  Block& block = block_at(address);
  if (block.cells.empty()) block.cells.resize(static_cast<std::size_t>(cells_in(block.bytes)));
  const auto begin = std::int64_t(number(address) - found->first);
  for (auto i = begin / kGrain; i * kGrain < begin + bytes; ++i) {
    Cell& cell = block.cells[static_cast<std::size_t>(i)];
    if (cell.launch != access.launch) cell = {.launch = access.launch};
    if (Finding finding = f(cell)) {
      finding.offset = i * kGrain;
      return finding;
    }
  }
  return {};
}

Finding DeviceMemory::read(const void* address, std::int64_t bytes, const Access& access) {
  return for_cells(address, bytes, access, [&](Cell& cell) -> Finding {
    if (cell.write_block >= 0) {
      if (cell.write_block != access.block) return {Finding::kOtherBlock, cell.write};
      if (!access.clocks->ordered(cell.write, access.stamp.thread)) {
        return {Finding::kRaceWithWrite, cell.write};
      }
    }
    const bool another = cell.read_block != -1 && cell.read_block != access.block;
    cell.read_block = another ? kSeveralBlocks : access.block;
    cell.read = access.stamp;
    return {};
  });
}

Finding DeviceMemory::write(const void* address, std::int64_t bytes, const Access& access) {
  return for_cells(address, bytes, access, [&](Cell& cell) -> Finding {
    if (cell.write_block >= 0) {
      if (cell.write_block != access.block) return {Finding::kOtherBlock, cell.write};
      if (!access.clocks->ordered(cell.write, access.stamp.thread)) {
        return {Finding::kRaceWithWrite, cell.write};
      }
    }
    if (cell.read_block != -1) {
      if (cell.read_block != access.block) return {Finding::kOtherBlock, cell.read};
      if (!access.clocks->ordered(cell.read, access.stamp.thread)) {
        return {Finding::kRaceWithRead, cell.read};
      }
    }
    cell.write_block = access.block;
    cell.write = access.stamp;
    return {};
  });
}

int DeviceMemory::watch(const void* begin, std::int64_t bytes) {
  watches_[next_watch_] = {number(begin), std::vector<bool>(static_cast<std::size_t>(bytes))};
  return next_watch_++;
}

void DeviceMemory::end_watch(int watch) { watches_.erase(watch); }

std::int64_t DeviceMemory::unwritten_bytes(int watch) const {
  const auto& written = watches_.at(watch).written;
  return std::count(written.begin(), written.end(), false);
}

bool DeviceMemory::note_write(const void* address, std::int64_t bytes) {
  for (auto& [id, watch] : watches_) {
    for (std::int64_t i = 0; i < bytes; ++i) {
      const auto offset = number(address) + std::uintptr_t(i) - watch.begin;
      if (offset >= watch.written.size()) continue;
      if (watch.written[offset]) return false;
      watch.written[offset] = true;
    }
  }
  return true;
}

}  // namespace coppice::emulated
