#pragma once
// One group of collectives under way on the emulated NCCL. What NCCL trusts its caller with is
// checked here: that all ranks issue the same, that memory is the device's, that nobody touches an
// input before it was read or an output before it is there.
#include <mpi.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/emulated/stream_order.hpp"
#include "parallel/nccl/nccl_calls.hpp"

namespace coppice::nccl {

/// What all ranks must have alike of a call.
struct CallHeader {
  std::int64_t count;
  std::int32_t kind, dtype, op, root;
  friend bool operator==(const CallHeader&, const CallHeader&) = default;
};
inline constexpr int kMostCalls = 64;  // of a group; a rank per broadcast or reduce
struct GroupHeader {
  std::int64_t calls;
  std::array<CallHeader, kMostCalls> call;
  friend bool operator==(const GroupHeader&, const GroupHeader&) = default;
};

/// Where a group belongs.
struct GroupPlace {
  MPI_Comm comm;
  int rank, size;
  std::string axis;
  std::int64_t serial;  // groups of the communicator before it
  std::uint64_t seed;   // of how late it completes
};

class GroupRun {
 public:
  GroupRun(GroupPlace place, std::span<const Call> calls);
  /// Given up where it is not done: what MPI may still read and write then stays.
  ~GroupRun();
  GroupRun(const GroupRun&) = delete;
  GroupRun& operator=(const GroupRun&) = delete;

  /// What it uses from when it is enqueued until it is done.
  std::vector<emulated::Claims::Range> uses() const;

  /// Does what can be done now, without waiting; true when all results are in place. Called with
  /// the device's memory open.
  ///
  /// Errors    DeviceError where ranks disagree, or memory is not what it should be
  bool advance();

 private:
  /// Bytes of a call: what it reads and writes here, and what `rank` sends to the others.
  std::int64_t read_bytes(const Call& call) const;
  std::int64_t written_bytes(const Call& call) const;
  std::int64_t sent_bytes(const Call& call, int rank) const;

  void start();
  void check_memory() const;
  void compare_headers() const;
  void send_values();
  void check_inputs_unchanged() const;
  void write_results();
  bool arrived();
  std::string name() const;
  std::string text_of(const GroupHeader& group, std::int64_t call) const;

  GroupPlace place_;
  std::vector<Call> calls_;
  enum class Phase { kWaiting, kHeaders, kValues, kDone } phase_ = Phase::kWaiting;
  struct Wire {  // what MPI is handed
    GroupHeader mine{};
    std::vector<GroupHeader> headers;               // by rank
    std::vector<std::vector<std::byte>> sent;       // by call: what this rank hands in
    std::vector<std::vector<std::byte>> all;        // by call: what all hand in, in rank order
    std::vector<std::vector<int>> counts, offsets;  // by call: by rank
    std::vector<MPI_Request> requests;
  };
  std::unique_ptr<Wire> wire_ = std::make_unique<Wire>();
  int held_ = 0;  // attempts before a finished group says so
};

}  // namespace coppice::nccl
