#pragma once
// One block of a grid while it runs: its threads on fibers, its warps, its barriers, and who may
// run next. Instructions (instructions.cpp) and memory accesses (hooks.cpp) are built on it.
#include <array>
#include <deque>
#include <string>
#include <vector>

#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/kernel.hpp"
#include "core/cuda/emulated/shared_memory.hpp"

namespace coppice::emulated {

/// What the lanes of a warp do together.
enum class Operation { kMma, kLoadMatrix, kLoadMatrixTransposed, kShuffle, kSyncWarp };
const char* name_of(Operation operation);

struct AsyncCopy {
  unsigned char* target;
  const void* source;
  bool valid;
  int group;
  std::source_location place;
};

struct Thread {
  int id, warp, lane;
  Dim3 index;
  void* stack = nullptr;
  bool done = false;
  std::source_location waits_at{};
  int copy_group = 0;
  std::vector<AsyncCopy> copies{};  // in flight
};

struct Warp {
  // What a lane brings to an operation, and takes from it.
  struct Lane {
    std::array<std::uint32_t, 10> words;
    const unsigned char* row;
  };
  std::array<Lane, kLanes> lanes;
  Operation operation;
  std::source_location place;
  int arrived = 0;
  int live = kLanes;
  std::vector<int> ready;  // ids of threads that may run
};

struct Barrier {
  int expected = 0;
  std::source_location place;
  std::vector<int> arrived;
};

class Block {
 public:
  Block(Gpu& gpu, const LaunchShape& shape, const KernelCall& call, std::uint32_t launch);

  /// Errors    DeviceError with what a check found
  void run(std::uint64_t block);

  /// The block that runs in this thread of the host while its kernel's own code runs; null while
  /// the emulator's does.
  static Block* in_kernel();

  /// The running thread waits, at `place`, until another makes it ready.
  void wait(const std::source_location& place);
  void make_ready(int thread);
  /// In a random schedule, now and then: another warp's turn.
  void maybe_hop();
  /// Others may run ahead from now on.
  void new_turn_order();

  /// Ends the block with an error, from any of its threads. Never unwinds the kernel.
  [[noreturn]] void fail(std::string problem);
  [[noreturn]] void fail(const Finding& finding, const std::string& what, const void* code);
  [[noreturn]] void fail_misaligned(std::uintptr_t address, std::uintptr_t alignment,
                                    const char* file, unsigned line);

  Access access(int thread, const void* code) const;
  /// Checks an access to shared memory and fails if anything is wrong with it.
  void check_shared(const void* address, std::int64_t bytes, bool write, int thread,
                    const void* code);
  /// Like that, to whatever lies at the address.
  void check_access(const void* address, std::int64_t bytes, bool write, const void* code);

  Thread& current() { return *current_; }
  Warp& warp_of(const Thread& thread) { return warps_[static_cast<std::size_t>(thread.warp)]; }
  std::vector<Thread>& threads() { return threads_; }
  Barrier& barrier(int id) { return barriers_[static_cast<std::size_t>(id)]; }
  SharedMemory& shared() { return shared_; }
  Clocks& clocks() { return clocks_; }
  Gpu& gpu() { return gpu_; }
  bool checks_races() const { return gpu_.options.check_races; }
  const Dim3& index() const { return index_; }
  const LaunchShape& shape() const { return shape_; }

  static constexpr int kBarriers = 16;

 private:
  static void run_thread();  // where a fiber starts
  Warp* next_warp();
  void switch_to(int thread);
  [[noreturn]] void leave();
  std::uint32_t random(std::size_t below);

  Gpu& gpu_;
  LaunchShape shape_;
  const KernelCall& call_;
  std::uint32_t launch_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::array<Barrier, kBarriers> barriers_;
  SharedMemory shared_;
  Clocks clocks_;
  Dim3 index_;
  std::uint64_t linear_index_ = 0;
  std::uint64_t random_state_ = 1;
  std::vector<int> turn_order_;  // of warps
  Thread* current_ = nullptr;
  void* host_stack_ = nullptr;
  int live_ = 0;
  std::string problem_;
};

/// While it lives, hooks take what runs for the emulator's own code.
class InEmulator {
 public:
  InEmulator();
  ~InEmulator();
  InEmulator(const InEmulator&) = delete;
  InEmulator& operator=(const InEmulator&) = delete;
  Block& block() { return *block_; }

 private:
  Block* block_;
};

/// "file:line" of an address in the program, where it can be told.
std::string describe_code(const void* code);
std::int32_t code_offset(const void* code);
std::string describe_code(std::int32_t offset);
std::string describe(const std::source_location& place);
/// In the program's own read-only or static data.
bool is_program_data(const void* address);

}  // namespace coppice::emulated
