#include "core/cuda/emulated/block.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <map>
#include <utility>

#include "core/error.hpp"

namespace coppice::emulated {
namespace {

// Which block's fibers run in this thread of the host, and whether it is the kernel's code that
// runs. Thread-local because a fiber starts, and a hook is called, with nothing in its hands.
thread_local Block* running = nullptr;
thread_local bool kernel_runs = false;

constexpr int kHopOnceIn = 4;

}  // namespace

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kMma:
      return "mma";
    case Operation::kLoadMatrix:
      return "load_matrix";
    case Operation::kLoadMatrixTransposed:
      return "load_matrix transposed";
    case Operation::kShuffle:
      return "a shuffle";
    case Operation::kSyncWarp:
      return "sync_warp";
  }
  return "";
}

InEmulator::InEmulator() : block_(running) { kernel_runs = false; }
InEmulator::~InEmulator() { kernel_runs = true; }

Block* Block::in_kernel() { return kernel_runs ? running : nullptr; }

Block::Block(Gpu& gpu, const LaunchShape& shape, const KernelCall& call, std::uint32_t launch)
    : gpu_(gpu), shape_(shape), call_(call), launch_(launch) {
  const auto threads = static_cast<int>(shape.block.count());
  for (int id = 0; id < threads; ++id) {
    const auto i = static_cast<unsigned>(id);
    threads_.push_back({.id = id,
                        .warp = id / kLanes,
                        .lane = id % kLanes,
                        .index = {i % shape.block.x, i / shape.block.x % shape.block.y,
                                  i / (shape.block.x * shape.block.y)}});
  }
  warps_.resize(static_cast<std::size_t>(threads / kLanes));
}

void Block::run(std::uint64_t block) {
  const Dim3& grid = shape_.grid;
  linear_index_ = block;
  index_ = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
            static_cast<unsigned>(block / (std::uint64_t{grid.x} * grid.y))};
  random_state_ = (gpu_.options.seed + block * 1000003) * 0x9E3779B97F4A7C15ull | 1;
  shared_.reset(shape_.shared_bytes, static_cast<int>(warps_.size()), checks_races());
  clocks_.reset(static_cast<int>(warps_.size()));
  for (Barrier& barrier : barriers_) barrier = {};
  for (Warp& warp : warps_) {
    warp.arrived = 0;
    warp.live = kLanes;
    warp.ready.clear();
  }
  for (Thread& thread : threads_) {
    thread.done = false;
    thread.copy_group = 0;
    thread.copies.clear();
    thread.stack = gpu_.stacks.prepare(thread.id, &Block::run_thread);
    make_ready(thread.id);
  }
  live_ = static_cast<int>(threads_.size());
  turn_order_.resize(warps_.size());
  for (std::size_t i = 0; i < warps_.size(); ++i) turn_order_[i] = static_cast<int>(i);

  running = this;
  current_ = &threads_[random(threads_.size())];
  std::erase(warp_of(*current_).ready, current_->id);
  new_turn_order();
  coppice_switch_stack(&host_stack_, current_->stack);  // comes back from leave()
  running = nullptr;
  ++gpu_.statistics.blocks;
  if (!problem_.empty()) throw DeviceError(problem_);
}

void Block::run_thread() {
  Block& block = *running;
  std::string escaped;
  try {
    kernel_runs = true;
    block.call_.invoke(block.call_.bound.get());
    kernel_runs = false;
  } catch (const std::exception& error) {
    kernel_runs = false;
    escaped = error.what();
  } catch (...) {
    kernel_runs = false;
    escaped = "something that is not an exception";
  }
  if (!escaped.empty()) block.fail("the kernel threw: " + escaped);
  Thread& thread = *block.current_;
  if (!thread.copies.empty()) {
    block.fail(
        fmt::format("the thread ends while a copy issued at {} is in flight (it may land in "
                    "another block's memory). Wait for all copies before the end.",
                    describe(thread.copies.front().place)));
  }
  thread.done = true;
  --block.warp_of(thread).live;
  --block.live_;
  block.wait({});
  std::abort();  // nobody makes a thread ready that is done
}

void Block::make_ready(int thread) {
  const Thread& entry = threads_[static_cast<std::size_t>(thread)];
  warps_[static_cast<std::size_t>(entry.warp)].ready.push_back(thread);
}

// xorshift64: cheap, and only its being spread matters.
std::uint32_t Block::random(std::size_t below) {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return static_cast<std::uint32_t>(((random_state_ >> 32) * below) >> 32);
}

// A warp's lanes take turns among themselves first, which keeps collectives cheap.
Warp* Block::next_warp() {
  Warp& own = warp_of(*current_);
  if (!own.ready.empty()) return &own;
  const auto count = turn_order_.size();
  const std::size_t start = gpu_.options.schedule == Schedule::kRandom ? random(count) : 0;
  for (std::size_t i = 0; i < count; ++i) {
    Warp& warp = warps_[static_cast<std::size_t>(turn_order_[(start + i) % count])];
    if (!warp.ready.empty()) return &warp;
  }
  return nullptr;
}

void Block::switch_to(int id) {
  Thread& before = *current_;
  current_ = &threads_[static_cast<std::size_t>(id)];
  if (current_ == &before) return;
  ++gpu_.statistics.switches;
  coppice_switch_stack(&before.stack, current_->stack);
}

void Block::wait(const std::source_location& place) {
  current_->waits_at = place;
  Warp* warp = next_warp();
  if (warp == nullptr && live_ == 0) leave();
  if (warp == nullptr) {
    std::map<std::string, int> waiting;
    for (const Thread& thread : threads_) {
      if (!thread.done) ++waiting[describe(thread.waits_at)];
    }
    std::string list;
    for (const auto& [where, count] : waiting) {
      list += fmt::format("{}{} at {}", list.empty() ? "" : ", ", count, where);
    }
    fail(
        fmt::format("no thread can go on: {} wait ({}; {} have ended), each for threads that never "
                    "come. Barriers and warp operations must be reached by all of their threads.",
                    live_, list, std::ssize(threads_) - live_));
  }
  std::vector<int>& ready = warp->ready;
  std::swap(ready[random(ready.size())], ready.back());
  const int id = ready.back();
  ready.pop_back();
  switch_to(id);
}

void Block::maybe_hop() {
  if (gpu_.options.schedule != Schedule::kRandom || random(kHopOnceIn) != 0) return;
  Warp& other = warps_[random(warps_.size())];
  if (other.ready.empty() || &other == &warp_of(*current_)) return;
  make_ready(current_->id);
  std::swap(other.ready[random(other.ready.size())], other.ready.back());
  const int id = other.ready.back();
  other.ready.pop_back();
  switch_to(id);
}

void Block::new_turn_order() {
  for (std::size_t i = turn_order_.size(); i > 1; --i) {
    std::swap(turn_order_[i - 1], turn_order_[random(i)]);
  }
}

// The fibers are left as they stand; the kernel's own frames hold nothing that must be given back.
void Block::leave() {
  kernel_runs = false;
  void* abandoned = nullptr;
  coppice_switch_stack(&abandoned, host_stack_);
  std::abort();
}

}  // namespace coppice::emulated
