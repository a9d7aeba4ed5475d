#include "parallel/mpi/mpi_communicator.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>

#include "parallel/mpi/long_wait.hpp"

namespace coppice {
namespace {

// MPI-3.1 counts are ints.
int count_of(std::int64_t count, const char* what) {
  COPPICE_CHECK(count <= std::numeric_limits<int>::max(), "{} of {} elements or rows in one call",
                what, count);
  return static_cast<int>(count);
}

std::int64_t elements_per_row(ConstTensorView whole) {
  std::int64_t elements = 1;
  for (int axis = 1; axis < whole.shape().rank(); ++axis) elements *= whole.shape()[axis];
  return elements;
}

/// One row as an MPI type, so that counts are rows and stay small.
class RowType {
 public:
  explicit RowType(ConstTensorView whole) {
    const auto bytes = elements_per_row(whole) * size_of(whole.dtype());
    check_mpi(MPI_Type_contiguous(count_of(bytes, "a row"), MPI_BYTE, &type_),
              "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~RowType() { MPI_Type_free(&type_); }
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(fmt::format("{} failed: {}", call, text.data()));
}

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::string axis, WatchdogConfig watchdog,
                                 const Activity& activity, Heartbeat& heartbeat, bool has_threads)
    : comm_(comm),
      axis_(std::move(axis)),
      watchdog_(watchdog),
      activity_(activity),
      heartbeat_(heartbeat),
      pairwise_(comm),
      has_threads_(has_threads) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiCommunicator::~MpiCommunicator() {
  thread_.abandon();
  MPI_Comm_free(&comm_);
}

// A collective in the axis's own thread. While nobody waits for it nobody says that this rank
// waits: what counts for the others is what the thread does that drives the rank.
class MpiCommunicator::UnderCompute final : public Background {
 public:
  UnderCompute(MpiCommunicator& comm, std::shared_ptr<CollectiveThread::Job> job,
               const BackgroundFacts& facts)
      : comm_(comm), job_(std::move(job)), facts_(facts) {}
  ~UnderCompute() override {
    // Its tensors may be gone in a moment.
    if (!job_->done) comm_.thread_.abandon();
  }
  void finish(Stream&) override {
    comm_.wait([&] { return job_->done.load(); }, facts_.collective, facts_.bytes);
    if (job_->error) std::rethrow_exception(job_->error);
  }
  bool is_timed() const override { return true; }
  TraceSpan ran() const override { return job_->ran; }

 private:
  MpiCommunicator& comm_;
  std::shared_ptr<CollectiveThread::Job> job_;
  BackgroundFacts facts_;
};

std::unique_ptr<Background> MpiCommunicator::start(Stream& stream, CollectiveCall collective,
                                                   const BackgroundFacts& facts) {
  if (!has_threads_) {
    collective(stream);
    return nullptr;
  }
  auto job = thread_.add([collective = std::move(collective)] {
    Stream host{Device{}};
    collective(host);
  });
  return std::make_unique<UnderCompute>(*this, std::move(job), facts);
}

// The order of an axis's collectives is that of their calls: one that blocks comes behind those
// that were started before.
void MpiCommunicator::take_turn(Collective collective, std::int64_t bytes) {
  if (thread_.is_idle() || thread_.runs_here()) return;
  wait([&] { return thread_.is_idle(); }, collective, bytes);
}

void MpiCommunicator::finish(std::span<MPI_Request> requests, Collective collective,
                             std::int64_t bytes) {
  wait(
      [&] {
        int done = 0;
        check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                              MPI_STATUSES_IGNORE),
                  "MPI_Testall");
        return done != 0;
      },
      collective, bytes);
}

void MpiCommunicator::wait(const std::function<bool()>& is_done, Collective collective,
                           std::int64_t bytes) {
  // Short waits are spun, so that small collectives stay fast; then the core is offered to others.
  constexpr int kSpins = 200;
  constexpr std::chrono::milliseconds kShortWait(1);
  constexpr std::chrono::microseconds kPause(50);
  const auto start = LongWait::Clock::now();
  // In the axis's own thread nothing is told, and nobody given up: this rank's driver waits for it.
  const bool runs_here = thread_.runs_here();
  std::optional<LongWait> longer;
  for (int poll = 0;; ++poll) {
    if (is_done()) break;
    if (poll < kSpins) continue;
    sched_yield();
    // A long wait leaves the core to whoever is waited for: yielding ranks still take turns.
    // Under compute nobody waits yet, and the core is the compute's.
    if (runs_here || LongWait::Clock::now() - start > kShortWait)
      std::this_thread::sleep_for(kPause);
    if (runs_here) {
      thread_.check_abandoned();
      continue;
    }
    heartbeat_.host_waits();
    if (!longer)
      longer.emplace(heartbeat_, watchdog_, name_of(collective), axis_, activity_, start);
    longer->look();
    if (longer->is_too_long()) throw CommError(longer->report(bytes));
  }
  if (longer) longer->end();
}

void MpiCommunicator::reduce_pieces(ConstTensorView whole, TensorView result, ReduceOp op,
                                    std::span<const std::int64_t> begins, Collective collective) {
  pairwise_.run(whole.bytes(), result.bytes(), begins, whole.dtype(), op,
                [&](std::span<MPI_Request> requests) {
                  finish(requests, collective, whole.numel() * size_of(whole.dtype()));
                });
}

void MpiCommunicator::do_all_reduce(Stream&, TensorView data, ReduceOp op) {
  take_turn(Collective::kAllReduce, data.numel() * size_of(data.dtype()));
  // Everybody sums a piece, and then has everybody's.
  std::vector<std::int64_t> begins, counts;
  for (int rank = 0; rank <= size_; ++rank) begins.push_back(data.numel() * rank / size_);
  for (int rank = 0; rank < size_; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    counts.push_back(begins[r + 1] - begins[r]);
  }
  const auto mine = static_cast<std::size_t>(rank_);
  const TensorView flat = data.reshape({data.numel()});
  const TensorView piece = flat.rows(begins[mine], counts[mine]);
  reduce_pieces(flat, piece, op, begins, Collective::kAllReduce);
  gather_pieces(piece, flat, counts, Collective::kAllReduce);
}

void MpiCommunicator::do_all_gather(Stream&, ConstTensorView shard, TensorView whole,
                                    std::span<const std::int64_t> rows) {
  take_turn(Collective::kAllGather, shard.numel() * size_of(shard.dtype()));
  gather_pieces(shard, whole, rows, Collective::kAllGather);
}

void MpiCommunicator::gather_pieces(ConstTensorView shard, TensorView whole,
                                    std::span<const std::int64_t> rows, Collective collective) {
  if (whole.numel() == 0) return;
  const RowType row(whole);
  std::vector<int> counts, offsets;
  std::int64_t offset = 0;
  for (const auto count : rows) {
    counts.push_back(count_of(count, "all_gather"));
    offsets.push_back(count_of(offset, "all_gather"));
    offset += count;
  }
  // MPI wants to be told when the shard lies at its place already.
  const std::byte* place = whole.rows(offsets[static_cast<std::size_t>(rank_)], 0).bytes();
  const bool in_place = shard.bytes() == place;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgatherv(in_place ? MPI_IN_PLACE : shard.bytes(),
                            counts[static_cast<std::size_t>(rank_)], row.get(), whole.bytes(),
                            counts.data(), offsets.data(), row.get(), comm_, &request),
            "MPI_Iallgatherv");
  // Of an all-reduce the payload is the whole.
  const ConstTensorView payload = collective == Collective::kAllReduce ? whole : shard;
  finish({&request, 1}, collective, payload.numel() * size_of(payload.dtype()));
}

void MpiCommunicator::do_reduce_scatter(Stream&, ConstTensorView whole, TensorView shard,
                                        std::span<const std::int64_t> rows) {
  take_turn(Collective::kReduceScatter, whole.numel() * size_of(whole.dtype()));
  const auto per_row = elements_per_row(whole);
  std::vector<std::int64_t> begins{0};
  for (const auto count : rows) begins.push_back(begins.back() + count * per_row);
  reduce_pieces(whole, shard, ReduceOp::kSum, begins, Collective::kReduceScatter);
}

void MpiCommunicator::do_broadcast(Stream&, TensorView data, int root) {
  if (data.numel() == 0) return;
  take_turn(Collective::kBroadcast, data.numel() * size_of(data.dtype()));
  const RowType row(data);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(data.bytes(), count_of(data.shape()[0], "broadcast"), row.get(), root, comm_,
                       &request),
            "MPI_Ibcast");
  finish({&request, 1}, Collective::kBroadcast, data.numel() * size_of(data.dtype()));
}

void MpiCommunicator::do_barrier(Stream&) {
  take_turn(Collective::kBarrier, 0);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  finish({&request, 1}, Collective::kBarrier, 0);
}

}  // namespace coppice
