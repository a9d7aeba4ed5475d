#include "core/cuda/emulated/shared_memory.hpp"

namespace coppice::emulated {
namespace {

constexpr std::int64_t kGrain = 2;
constexpr std::int64_t kAlignment = 1024;
constexpr std::int64_t kBeside = 4096;  // an access this far beside is still taken for one of ours

}  // namespace

void SharedMemory::reset(std::int64_t bytes, int warps, bool shadow) {
  memory_.assign(static_cast<std::size_t>(bytes + kAlignment + 2 * kBeside), 0xff);
  const auto first = reinterpret_cast<std::uintptr_t>(memory_.data()) + kBeside;
  data_ = memory_.data() + kBeside + (kAlignment - first % kAlignment) % kAlignment;
  bytes_ = bytes;
  warps_ = warps;
  const auto cells = static_cast<std::size_t>(shadow ? (bytes + kGrain - 1) / kGrain : 0);
  cells_.assign(cells, {});
  reads_.assign(cells * static_cast<std::size_t>(warps), {});
}

std::int64_t SharedMemory::offset_of(const void* address) const {
  return static_cast<const unsigned char*>(address) - data_;
}

bool SharedMemory::is_near(const void* address) const {
  const auto offset = offset_of(address);
  return offset >= -kBeside && offset < bytes_ + kBeside;
}

bool SharedMemory::contains(const void* address, std::int64_t bytes) const {
  const auto offset = offset_of(address);
  return offset >= 0 && offset + bytes <= bytes_;
}

Finding SharedMemory::check_read(std::int64_t index, const Access& access) {
  const Cell& cell = cells_[static_cast<std::size_t>(index)];
  const Stamp& now = access.stamp;
  if (cell.copy_in_flight) return {Finding::kCopyNotLanded, cell.write, index * kGrain};
  if (cell.write.clock == 0) return {Finding::kNeverWritten, {}, index * kGrain};
  if (!access.clocks->ordered(cell.write, now.thread)) {
    return {Finding::kRaceWithWrite, cell.write, index * kGrain};
  }
  const int warp = now.thread / kLanes;
  const auto lane = static_cast<std::uint16_t>(now.thread % kLanes);
  Read& read = reads_[static_cast<std::size_t>(index * warps_ + warp)];
  if (read.clock != now.clock || read.sync != now.sync) {
    read = {now.clock, now.sync, lane};
  } else if (read.lane != lane) {
    read.lane = kSeveralLanes;
  }
  return {};
}

Finding SharedMemory::check_write(std::int64_t index, const Access& access) {
  Cell& cell = cells_[static_cast<std::size_t>(index)];
  const Stamp& now = access.stamp;
  if (cell.copy_in_flight) return {Finding::kCopyNotLanded, cell.write, index * kGrain};
  if (cell.write.clock != 0 && !access.clocks->ordered(cell.write, now.thread)) {
    return {Finding::kRaceWithWrite, cell.write, index * kGrain};
  }
  for (int warp = 0; warp < warps_; ++warp) {
    Read& read = reads_[static_cast<std::size_t>(index * warps_ + warp)];
    if (read.clock == 0) continue;
    // Of several lanes, at least one is not the writer: take one that is another.
    const int lane = read.lane != kSeveralLanes ? read.lane : now.thread % kLanes == 0 ? 1 : 0;
    const Stamp then{read.clock, static_cast<std::uint16_t>(warp * kLanes + lane), read.sync, 0};
    if (!access.clocks->ordered(then, now.thread)) {
      return {Finding::kRaceWithRead, then, index * kGrain};
    }
    read = {};
  }
  cell.write = now;
  return {};
}

Finding SharedMemory::read(const void* address, std::int64_t bytes, const Access& access) {
  const auto begin = offset_of(address);
  for (auto cell = begin / kGrain; cell * kGrain < begin + bytes; ++cell) {
    if (const Finding finding = check_read(cell, access)) return finding;
  }
  return {};
}

Finding SharedMemory::write(const void* address, std::int64_t bytes, const Access& access) {
  const auto begin = offset_of(address);
  for (auto cell = begin / kGrain; cell * kGrain < begin + bytes; ++cell) {
    if (const Finding finding = check_write(cell, access)) return finding;
  }
  return {};
}

void SharedMemory::start_copy(const void* address, std::int64_t bytes) {
  const auto begin = offset_of(address) / kGrain;
  for (auto cell = begin; cell < begin + bytes / kGrain; ++cell) {
    cells_[static_cast<std::size_t>(cell)].copy_in_flight = true;
  }
}

// From here on the copy counts as written by the thread that waited for it.
void SharedMemory::land_copy(const void* address, std::int64_t bytes, const Access& access) {
  const auto begin = offset_of(address) / kGrain;
  for (auto cell = begin; cell < begin + bytes / kGrain; ++cell) {
    cells_[static_cast<std::size_t>(cell)] = {access.stamp, false};
  }
}

}  // namespace coppice::emulated
