#pragma once
// The few calls of NCCL that this program makes, as plain functions. They exist twice:
// nccl_calls.cpp calls NCCL, emulated/nccl_calls.cpp does over MPI what NCCL does and checks what
// NCCL trusts its caller with. Which collective is called when is nccl_communicator's business.
#include <array>
#include <memory>
#include <span>
#include <string>

#include "parallel/communicator.hpp"

namespace coppice::nccl {

enum class CallKind { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce };

/// One collective, as NCCL's function of that name takes it.
///
/// Memory    of the device; `send` may be its own place in `receive`, and the other way round
struct Call {
  CallKind kind;
  const void* send = nullptr;  ///< a broadcast's: read on its root alone
  void* receive = nullptr;     ///< a reduce's: written on its root alone
  /// Elements that this rank sends (gathers), receives (reduce-scatter), or both.
  std::int64_t count = 0;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

/// What the ranks of one communicator are told by the one that made it.
struct UniqueId {
  std::array<char, 128> bytes{};
};
/// Errors    CommError
UniqueId make_unique_id();

/// An ncclComm_t.
class Connection;
struct EndConnection {
  /// Without waiting for anybody: what is under way ends without a result.
  void operator()(Connection* connection) const;
};
using ConnectionPtr = std::unique_ptr<Connection, EndConnection>;

enum class State {
  kReady,
  kInProgress,  ///< joining, or ending
  kFailed,      ///< for good: failure_of() says why
};

/// Begins to join the communicator of `size` ranks with that id, for the stream's device; done once
/// its state is kReady. `axis` is how errors call it.
///
/// Errors    CommError
ConnectionPtr begin(const Device& device, const UniqueId& id, int rank, int size, std::string axis);

/// Of joining and ending, which come on by being asked for.
State state_of(Connection& connection);
/// Whether joining, ending or the work issued so far has failed. Any thread.
bool has_failed(Connection& connection);
/// Whether that may be another rank's fault: it is lost, or the way to it. Any thread.
bool concerns_peers(Connection& connection);
/// The library's words. Any thread.
std::string failure_of(Connection& connection);

/// Enqueues the calls as one group: they run together, in no order among each other. Always on the
/// same stream of the device that the connection was begun for.
///
/// Errors    CommError where NCCL refuses, or the connection was aborted
void issue(Connection& connection, Stream& stream, std::span<const Call> group);

/// Begins to end in order, together with all ranks; kReady once that is done.
void begin_end(Connection& connection);
/// Stops what is under way on the device; whatever it leaves in memory has no meaning. Any thread.
void abort(Connection& connection) noexcept;

/// While the host waits for something else than the device: an emulated device must be let work.
void while_host_waits();

/// "NCCL 2.28.9"; says so where it is emulated.
std::string version();
/// What the library says of one of its codes (an ncclResult_t).
std::string text_of(int code);

}  // namespace coppice::nccl
