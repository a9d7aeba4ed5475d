// NCCL's calls on real devices.
#include "parallel/nccl/nccl_calls.hpp"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "core/cuda/launch_support.hpp"

namespace coppice::nccl {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
  }
  throw ContractError(fmt::format("NCCL is handed a tensor of {}", name_of(dtype)));
}

ncclRedOp_t op_of(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

void check(ncclResult_t code, const char* call) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw CommError(
      fmt::format("{} failed: {} ({})", call, ncclGetErrorString(code), ncclGetLastError(nullptr)));
}

}  // namespace

// NCCL lets one thread abort a communicator that another uses, and frees it then. So everybody
// takes it from here, for no longer than a call of NCCL lasts.
class Connection {
 public:
  ~Connection() {
    if (finalized && state() == ncclSuccess) {
      ncclCommDestroy(comm);
    } else {
      stop();
    }
  }

  ncclComm_t comm = nullptr;
  std::string axis;
  std::timed_mutex mutex;
  std::atomic<bool> aborted = false;
  bool finalized = false;
  std::string failure;
  ncclResult_t failed_with = ncclSuccess;

  ncclResult_t state() {
    const std::lock_guard lock(mutex);
    if (aborted) return ncclInvalidUsage;
    ncclResult_t code = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &code);
    if (asked != ncclSuccess) code = asked;
    if (code != ncclSuccess && code != ncclInProgress) {
      failed_with = code;
      failure = fmt::format("{} ({})", ncclGetErrorString(code), ncclGetLastError(comm));
    }
    return code;
  }

  void stop() {
    // A thread within a call holds the mutex, and may be kept there by the very work that is to be
    // stopped: then NCCL must cope, as it promises.
    constexpr std::chrono::seconds kPatience(1);
    const bool locked = mutex.try_lock_for(kPatience);
    const bool first = !aborted.exchange(true);
    if (first && comm != nullptr) ncclCommAbort(std::exchange(comm, nullptr));
    if (locked) mutex.unlock();
  }
};

namespace {

// What NCCL can be told by its environment alone. Read at its first calls; whoever has set one of
// them means it.
void set_environment() {
  // Sums within NVLink's switches differ from call to call (NVIDIA/nccl issue 1497), and a run must
  // repeat bit for bit.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // Collectives of two axes are under way at once. Unless they start in the same order on every
  // device, each may hold what the other needs to start; this makes it the order of the calls.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

}  // namespace

UniqueId make_unique_id() {
  static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));
  set_environment();
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  UniqueId result;
  std::memcpy(result.bytes.data(), &id, sizeof(id));
  return result;
}

void EndConnection::operator()(Connection* connection) const { delete connection; }

ConnectionPtr begin(const Device&, const UniqueId& id, int rank, int size, std::string axis) {
  set_environment();  // of ranks that made no id
  ncclUniqueId native;
  std::memcpy(&native, id.bytes.data(), sizeof(native));
  ConnectionPtr connection(new Connection);
  connection->axis = std::move(axis);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.collnetEnable = 0;  // sums within network switches, for the same reason
  config.commName = connection->axis.c_str();
  // The device is the thread's current one, chosen when its first stream was made.
  check(ncclCommInitRankConfig(&connection->comm, size, native, rank, &config),
        "ncclCommInitRankConfig");
  return connection;
}

State state_of(Connection& connection) {
  switch (connection.state()) {
    case ncclSuccess:
      return State::kReady;
    case ncclInProgress:
      return State::kInProgress;
    default:
      return State::kFailed;
  }
}

bool has_failed(Connection& connection) {
  return !connection.aborted && state_of(connection) == State::kFailed;
}

bool concerns_peers(Connection& connection) {
  const std::lock_guard lock(connection.mutex);
  return connection.failed_with == ncclRemoteError || connection.failed_with == ncclSystemError;
}

std::string failure_of(Connection& connection) {
  const std::lock_guard lock(connection.mutex);
  return connection.failure.empty() ? "it was aborted" : connection.failure;
}

namespace {

ncclResult_t call(ncclComm_t comm, const Call& c, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(c.count);
  const ncclDataType_t type = type_of(c.dtype);
  switch (c.kind) {
    case CallKind::kAllReduce:
      return ncclAllReduce(c.send, c.receive, count, type, op_of(c.op), comm, stream);
    case CallKind::kAllGather:
      return ncclAllGather(c.send, c.receive, count, type, comm, stream);
    case CallKind::kReduceScatter:
      return ncclReduceScatter(c.send, c.receive, count, type, op_of(c.op), comm, stream);
    case CallKind::kBroadcast:
      return ncclBroadcast(c.send, c.receive, count, type, c.root, comm, stream);
    case CallKind::kReduce:
      return ncclReduce(c.send, c.receive, count, type, op_of(c.op), c.root, comm, stream);
  }
  return ncclInvalidArgument;
}

}  // namespace

void issue(Connection& connection, Stream& stream, std::span<const Call> group) {
  const auto native = static_cast<cudaStream_t>(cuda::native_stream(stream));
  {
    const std::lock_guard lock(connection.mutex);
    if (connection.aborted) throw CommError("NCCL's communicator was aborted");
    check(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t first = ncclSuccess;
    for (const Call& each : group) {
      const ncclResult_t code = call(connection.comm, each, native);
      if (first == ncclSuccess && code != ncclInProgress) first = code;
    }
    const ncclResult_t end = ncclGroupEnd();
    check(first, "an NCCL collective");
    check(end, "ncclGroupEnd");
  }
  // The first of a kind connects to its peers before it is enqueued; NCCL wants nothing else to be
  // enqueued meanwhile. How long that may take is the watchdog's business: it aborts.
  constexpr std::chrono::microseconds kPause(20);
  for (State state = state_of(connection); state != State::kReady; state = state_of(connection)) {
    if (state == State::kFailed) throw CommError("NCCL failed: " + failure_of(connection));
    std::this_thread::sleep_for(kPause);
  }
}

void begin_end(Connection& connection) {
  const std::lock_guard lock(connection.mutex);
  if (connection.aborted) return;
  check(ncclCommFinalize(connection.comm), "ncclCommFinalize");
  connection.finalized = true;
}

void abort(Connection& connection) noexcept { connection.stop(); }

void while_host_waits() {}

std::string version() {
  int code = 0;
  check(ncclGetVersion(&code), "ncclGetVersion");
  return fmt::format("NCCL {}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::string text_of(int code) { return ncclGetErrorString(static_cast<ncclResult_t>(code)); }

}  // namespace coppice::nccl
