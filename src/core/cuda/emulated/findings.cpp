// From what a check found to an error that says where and what to do, and the checks that need a
// whole block for it.
#include <fmt/format.h>

#include <string_view>

#include "core/cuda/emulated/block.hpp"

namespace coppice::emulated {

void Block::fail(std::string problem) {
  problem_ =
      fmt::format("kernel launched at {}, block ({}, {}, {}), thread {}: {}",
                  describe(shape_.place), index_.x, index_.y, index_.z, current_->id, problem);
  problem = {};
  leave();
}

void Block::fail(const Finding& finding, const std::string& what, const void* code) {
  const std::string here =
      fmt::format("{} at byte {}, {}", what, finding.offset, describe_code(code));
  const std::string there =
      fmt::format("thread {} {}", finding.other.thread, describe_code(finding.other.code));
  switch (finding.kind) {
    case Finding::kRaceWithWrite:
      fail(
          fmt::format("race: {}; {} wrote it and nothing orders the two (the result depends on "
                      "timing). Put a barrier, sync_warp() or a wait between them.",
                      here, there));
    case Finding::kRaceWithRead:
      fail(
          fmt::format("race: {}; {} read it and nothing orders the two (the result depends on "
                      "timing). Put a barrier or sync_warp() between them.",
                      here, there));
    case Finding::kOtherBlock:
      fail(fmt::format(
          "race between blocks: {}; {} of another block had it too, one of them writing "
          "(blocks run in any order). Give each block its own part, or use two kernels.",
          here, there));
    case Finding::kNeverWritten:
      fail(fmt::format("{} was never written (shared memory starts with garbage). Write it first.",
                       here));
    case Finding::kCopyNotLanded:
      fail(fmt::format(
          "{}: a copy to there, issued by {}, has not landed (its thread has not waited "
          "for it). Put wait_copies, then a barrier, before.",
          here, there));
    case Finding::kNothing:
      break;
  }
  fail(here);
}

void Block::fail_misaligned(std::uintptr_t address, std::uintptr_t alignment, const char* file,
                            unsigned line) {
  const std::string_view path(file);
  fail(fmt::format(
      "an access at {}:{} to address {:#x}, which is no multiple of {} (the instruction "
      "would fault). Check offsets and row strides, or move fewer bytes at once.",
      path.substr(path.rfind('/') + 1), line, address, alignment));
}

Access Block::access(int thread, const void* code) const {
  return {clocks_.stamp(thread, code_offset(code)), static_cast<std::int32_t>(linear_index_),
          launch_, &clocks_};
}

void Block::check_shared(const void* address, std::int64_t bytes, bool write, int thread,
                         const void* code) {
  const auto offset = static_cast<const unsigned char*>(address) - shared_.data();
  if (!shared_.contains(address, bytes)) {
    fail(fmt::format(
        "{} of {} bytes at {}, {} of the block's {} bytes of shared memory (they are "
        "another block's). Ask for more in LaunchShape, or mend the index.",
        write ? "a write" : "a read", bytes, offset, describe_code(code), shape_.shared_bytes));
  }
  if (!checks_races()) return;
  const Access now = access(thread, code);
  const Finding finding =
      write ? shared_.write(address, bytes, now) : shared_.read(address, bytes, now);
  if (finding) fail(finding, write ? "a write to shared memory" : "a read of shared memory", code);
}

void Block::check_access(const void* address, std::int64_t bytes, bool write, const void* code) {
  ++gpu_.statistics.checked_accesses;
  if (shared_.is_near(address)) return check_shared(address, bytes, write, current_->id, code);
  const int owner = gpu_.stacks.owner_of(address);
  if (owner == current_->id) return;
  if (owner >= 0) {
    fail(
        fmt::format("{} of thread {}'s local memory, {} (each thread sees only its own). Pass the "
                    "value through shared memory or a shuffle.",
                    write ? "a write" : "a read", owner, describe_code(code)));
  }
  DeviceMemory& memory = gpu_.memory;
  const std::string problem = memory.problem_with(address, bytes);
  if (!problem.empty()) {
    if (!write && is_program_data(address)) return;
    fail(
        fmt::format("{} of {} bytes, {}, is {} (it would fault or hit another tensor). Mend the "
                    "index, or upload what the host has.",
                    write ? "a write" : "a read", bytes, describe_code(code), problem));
  }
  const std::string conflict =
      gpu_.order.problem_with(address, bytes, write ? Use::kWrite : Use::kRead);
  if (!conflict.empty()) {
    fail(fmt::format("{} of {} bytes, {}, at {}", write ? "a write" : "a read", bytes,
                     describe_code(code), conflict));
  }
  if (write) {
    memory.note_contents(address, bytes);
  } else if (checks_races() && !memory.holds_contents(address, bytes)) {
    fail(
        fmt::format("a read of {} bytes of device memory, {}, that nothing was written to (memory "
                    "starts with garbage). Write it first, or ask for fewer bytes.",
                    bytes, describe_code(code)));
  }
  if (write && !memory.note_write(address, bytes)) {
    fail(
        fmt::format("a write of {} bytes, {}, to an output that was written already (its parts are "
                    "not disjoint). Let one thread own each element.",
                    bytes, describe_code(code)));
  }
  if (!checks_races()) return;
  const Access now = access(current_->id, code);
  const Finding finding =
      write ? memory.write(address, bytes, now) : memory.read(address, bytes, now);
  if (finding) fail(finding, write ? "a write to device memory" : "a read of device memory", code);
}

}  // namespace coppice::emulated
