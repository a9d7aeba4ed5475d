// The instructions of core/cuda/emulated/kernel.hpp: barriers, what a warp does together, and
// copies that run beside the thread. A warp's operation is done once, by the lane that comes last.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/cuda/emulated/block.hpp"

namespace coppice::emulated {
namespace {

constexpr std::uintptr_t kCopyBytes = 16;

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

template <class Work>
void together(Block& block, Operation operation, const std::source_location& place, Work&& work) {
  Thread& thread = block.current();
  Warp& warp = block.warp_of(thread);
  if (warp.arrived == 0) {
    if (warp.live != kLanes) {
      block.fail(
          fmt::format("{} at {}, but {} lanes of the warp have ended (all 32 must come). Let "
                      "lanes without work go along.",
                      name_of(operation), describe(place), kLanes - warp.live));
    }
    warp.operation = operation;
    warp.place = place;
  } else if (warp.operation != operation || !same_place(warp.place, place)) {
    block.fail(fmt::format(
        "the warp is divided: this lane is at {} at {}, others at {} at {} (all 32 "
        "must come to the same). Move it out of the branch.",
        name_of(operation), describe(place), name_of(warp.operation), describe(warp.place)));
  }
  if (++warp.arrived < kLanes) return block.wait(place);
  warp.arrived = 0;
  ++block.gpu().statistics.collectives;
  work(warp);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane != thread.lane) block.make_ready(thread.warp * kLanes + lane);
  }
  block.maybe_hop();
}

Warp::Lane& lane_of(Block& block) {
  const Thread& thread = block.current();
  return block.warp_of(thread).lanes[static_cast<std::size_t>(thread.lane)];
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kCopyBytes == 0;
}

float bf16(std::uint32_t pair, int half) {
  const std::uint32_t bits = half == 0 ? pair << 16 : pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Words of a lane: 0-3 A, 4-5 B, 6-9 C and then D. Layouts: PTX ISA, "mma.m16n8k16".
void multiply(Warp& warp) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& words = warp.lanes[static_cast<std::size_t>(lane)].words;
    const int g = lane / 4, q = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      a[g][q + half] = bf16(words[0], half);
      a[g + 8][q + half] = bf16(words[1], half);
      a[g][q + 8 + half] = bf16(words[2], half);
      a[g + 8][q + 8 + half] = bf16(words[3], half);
      b[q + half][g] = bf16(words[4], half);
      b[q + 8 + half][g] = bf16(words[5], half);
    }
    std::memcpy(&d[g][q], &words[6], 8);
    std::memcpy(&d[g + 8][q], &words[8], 8);
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& words = warp.lanes[static_cast<std::size_t>(lane)].words;
    const int g = lane / 4, q = lane % 4 * 2;
    std::memcpy(&words[6], &d[g][q], 8);
    std::memcpy(&words[8], &d[g + 8][q], 8);
  }
}

// Shared memory gives 128 bytes at a time, one from each of 32 banks of 4 bytes: eight rows of 16
// come at once where they lie in different eighths of 128 bytes.
int passes_for(const Warp& warp, int first_lane) {
  std::array<std::vector<const unsigned char*>, 8> rows;
  for (int lane = first_lane; lane < first_lane + 8; ++lane) {
    const unsigned char* row = warp.lanes[static_cast<std::size_t>(lane)].row;
    auto& eighth = rows[reinterpret_cast<std::uintptr_t>(row) / kCopyBytes % 8];
    if (std::find(eighth.begin(), eighth.end(), row) == eighth.end()) eighth.push_back(row);
  }
  std::size_t most = 0;
  for (const auto& eighth : rows) most = std::max(most, eighth.size());
  return static_cast<int>(most);
}

void load_matrices(Block& block, Warp& warp, bool transposed, const void* code) {
  const int first = block.current().warp * kLanes;
  Statistics& statistics = block.gpu().statistics;
  statistics.matrix_loads += 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t elements[8][8];
    statistics.matrix_load_passes += static_cast<std::uint64_t>(passes_for(warp, matrix * 8));
    for (int row = 0; row < 8; ++row) {
      const int lane = matrix * 8 + row;
      const unsigned char* source = warp.lanes[static_cast<std::size_t>(lane)].row;
      if (!is_aligned(source)) {
        block.fail(
            fmt::format("lane {}'s row of load_matrix at {} is not aligned to 16 bytes (the "
                        "instruction would fault). Pad or permute rows by whole 16 bytes.",
                        lane, describe(warp.place)));
      }
      block.check_shared(source, kCopyBytes, false, first + lane, code);
      std::memcpy(elements[row], source, kCopyBytes);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, q = lane % 4 * 2;
      const std::uint32_t low = transposed ? elements[q][g] : elements[g][q];
      const std::uint32_t high = transposed ? elements[q + 1][g] : elements[g][q + 1];
      warp.lanes[static_cast<std::size_t>(lane)].words[static_cast<std::size_t>(matrix)] =
          low | high << 16;
    }
  }
}

// The instruction counts warps, not threads, and wants all lanes of one at the same place.
void check_whole_warps(Block& block, int id, const Barrier& barrier,
                       const std::source_location& place) {
  std::array<int, kMaxWarps> lanes{};
  std::array<std::source_location, kMaxWarps> places{};
  for (const int thread : barrier.arrived) {
    const auto& at = thread == block.current().id
                         ? place
                         : block.threads()[static_cast<std::size_t>(thread)].waits_at;
    const auto warp = static_cast<std::size_t>(thread / kLanes);
    if (lanes[warp]++ == 0) places[warp] = at;
    if (same_place(places[warp], at)) continue;
    block.fail(
        fmt::format("barrier {} is reached by lanes of one warp at {} and at {} (a warp comes "
                    "as a whole). Move it out of the branch.",
                    id, describe(places[warp]), describe(at)));
  }
  for (const int count : lanes) {
    if (count == 0 || count == kLanes) continue;
    block.fail(
        fmt::format("barrier {} at {} is reached by {} lanes of a warp (a warp comes as a "
                    "whole). Move it out of the branch.",
                    id, describe(place), count));
  }
}

}  // namespace

Dim3 thread_index() { return InEmulator().block().current().index; }
Dim3 block_index() { return InEmulator().block().index(); }
Dim3 block_shape() { return InEmulator().block().shape().block; }
Dim3 grid_shape() { return InEmulator().block().shape().grid; }
unsigned char* shared_memory() { return InEmulator().block().shared().data(); }
int lane() { return InEmulator().block().current().lane; }

void barrier(int id, int threads, const std::source_location& place) {
  InEmulator inside;
  Block& block = inside.block();
  const auto all = static_cast<int>(block.threads().size());
  const int expected = threads == 0 ? all : threads;
  if (id < 0 || id >= Block::kBarriers || expected % kLanes != 0 || expected > all) {
    block.fail(
        fmt::format("barrier {} of {} threads at {} in a block of {} (there are 16, of whole "
                    "warps). Change the number.",
                    id, expected, describe(place), all));
  }
  Barrier& barrier = block.barrier(id);
  if (barrier.arrived.empty()) {
    barrier.expected = expected;
    barrier.place = place;
  } else if (barrier.expected != expected || (id == 0 && !same_place(barrier.place, place))) {
    block.fail(
        fmt::format("barrier {} is reached at {} by {} threads and at {} by {} (it must be one "
                    "and the same for all). Move it out of the branch.",
                    id, describe(place), expected, describe(barrier.place), barrier.expected));
  }
  const int self = block.current().id;
  barrier.arrived.push_back(self);
  if (std::ssize(barrier.arrived) < expected) return block.wait(place);
  check_whole_warps(block, id, barrier, place);
  ++block.gpu().statistics.barriers;
  block.clocks().meet(barrier.arrived);
  for (const int thread : barrier.arrived) block.make_ready(thread);
  barrier.arrived.clear();
  block.new_turn_order();
  block.wait(place);  // ready itself: perhaps another's turn now
}

void sync_warp(const std::source_location& place) {
  InEmulator inside;
  Block& block = inside.block();
  const int warp = block.current().warp;
  together(block, Operation::kSyncWarp, place, [&](Warp&) { block.clocks().sync_warp(warp); });
}

// Words of a lane: 0-1 the value, 2 the source, 3-4 the result.
std::uint64_t shuffle(std::uint64_t value, int source, const std::source_location& place) {
  InEmulator inside;
  Block& block = inside.block();
  Warp::Lane& own = lane_of(block);
  std::memcpy(&own.words[0], &value, sizeof value);
  own.words[2] = static_cast<std::uint32_t>(source) % kLanes;
  together(block, Operation::kShuffle, place, [](Warp& warp) {
    for (Warp::Lane& lane : warp.lanes) {
      std::memcpy(&lane.words[3], &warp.lanes[lane.words[2]].words[0], sizeof value);
    }
  });
  std::memcpy(&value, &own.words[3], sizeof value);
  return value;
}

void mma_m16n8k16_bf16(float* d, const std::uint32_t* a, const std::uint32_t* b,
                       const std::source_location& place) {
  InEmulator inside;
  Block& block = inside.block();
  Warp::Lane& own = lane_of(block);
  std::memcpy(&own.words[0], a, 16);
  std::memcpy(&own.words[4], b, 8);
  std::memcpy(&own.words[6], d, 16);
  together(block, Operation::kMma, place, [&](Warp& warp) {
    multiply(warp);
    ++block.gpu().statistics.matrix_products;
  });
  std::memcpy(d, &own.words[6], 16);
}

void load_matrix_x4(std::uint32_t* out, const void* row, bool transposed,
                    const std::source_location& place) {
  const void* code = __builtin_return_address(0);
  InEmulator inside;
  Block& block = inside.block();
  Warp::Lane& own = lane_of(block);
  own.row = static_cast<const unsigned char*>(row);
  const auto operation = transposed ? Operation::kLoadMatrixTransposed : Operation::kLoadMatrix;
  together(block, operation, place,
           [&](Warp& warp) { load_matrices(block, warp, transposed, code); });
  std::memcpy(out, &own.words[0], 16);
}

void copy_async_16(void* shared, const void* global, bool valid,
                   const std::source_location& place) {
  const void* code = __builtin_return_address(0);
  InEmulator inside;
  Block& block = inside.block();
  Thread& thread = block.current();
  if (!is_aligned(shared) || !is_aligned(global)) {
    block.fail(
        fmt::format("copy_async_16 at {} from {} to {}: not aligned to 16 bytes (the "
                    "instruction would fault). Check leading dimensions and offsets.",
                    describe(place), fmt::ptr(global), fmt::ptr(shared)));
  }
  block.check_shared(shared, kCopyBytes, true, thread.id, code);
  if (valid) block.check_access(global, kCopyBytes, false, code);
  std::memset(shared, 0xff, kCopyBytes);  // NaN until it lands
  if (block.checks_races()) block.shared().start_copy(shared, kCopyBytes);
  thread.copies.push_back(
      {static_cast<unsigned char*>(shared), global, valid, thread.copy_group, place});
  ++block.gpu().statistics.async_copies;
}

void commit_copies() { ++InEmulator().block().current().copy_group; }

void wait_copies(int pending) {
  const void* code = __builtin_return_address(0);
  InEmulator inside;
  Block& block = inside.block();
  Thread& thread = block.current();
  std::erase_if(thread.copies, [&](const AsyncCopy& copy) {
    if (copy.group >= thread.copy_group - pending) return false;
    if (block.checks_races()) {
      block.shared().land_copy(copy.target, kCopyBytes, block.access(thread.id, code));
    }
    if (copy.valid) {
      std::memcpy(copy.target, copy.source, kCopyBytes);
    } else {
      std::memset(copy.target, 0, kCopyBytes);
    }
    return true;
  });
}

}  // namespace coppice::emulated
