#include "parallel/communicator.hpp"

#include <chrono>
#include <numeric>

#include "core/copy.hpp"

namespace coppice {
namespace {

std::int64_t bytes_of(ConstTensorView tensor) { return tensor.numel() * size_of(tensor.dtype()); }

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

 private:
  void do_all_reduce(Stream&, TensorView, ReduceOp) override {}
  void do_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                     std::span<const std::int64_t>) override {
    if (shard.bytes() != whole.bytes()) copy(stream, shard, whole);
  }
  void do_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                         std::span<const std::int64_t>) override {
    if (shard.bytes() != whole.bytes()) copy(stream, whole, shard);
  }
  void do_broadcast(Stream&, TensorView, int) override {}
  void do_barrier(Stream&) override {}
};

class AbsentCommunicator final : public Communicator {
 public:
  AbsentCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  [[noreturn]] void refuse() const {
    throw ContractError(fmt::format("a collective on the planned rank {} of {}", rank_, size_));
  }
  void do_all_reduce(Stream&, TensorView, ReduceOp) override { refuse(); }
  void do_all_gather(Stream&, ConstTensorView, TensorView, std::span<const std::int64_t>) override {
    refuse();
  }
  void do_reduce_scatter(Stream&, ConstTensorView, TensorView,
                         std::span<const std::int64_t>) override {
    refuse();
  }
  void do_broadcast(Stream&, TensorView, int) override { refuse(); }
  void do_barrier(Stream&) override { refuse(); }

  int rank_, size_;
};

}  // namespace

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

template <class Call>
void Communicator::counted(Collective collective, std::int64_t bytes, Call&& call) {
  TraceScope scope(size() > 1 ? trace_ : nullptr, TraceKind::kCollective,
                   name_of(collective).data(), {.bytes = bytes, .axis = trace_axis_});
  const auto start = std::chrono::steady_clock::now();
  call(scope);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CollectiveCounter& counter = counters_[static_cast<std::size_t>(collective)];
  ++counter.calls;
  // One rank sends nothing to anybody.
  counter.bytes += size() > 1 ? bytes : 0;
  counter.seconds += seconds.count();
}

void Communicator::check_rows(const char* what, ConstTensorView shard, ConstTensorView whole,
                              std::span<const std::int64_t> rows) const {
  COPPICE_CHECK(std::ssize(rows) == size(), "{}: rows of {} ranks for {} ranks", what, rows.size(),
                size());
  const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  COPPICE_CHECK(shard.dtype() == whole.dtype() && shard.shape().rank() == whole.shape().rank() &&
                    shard.shape() == whole.shape().with(0, rows[static_cast<std::size_t>(rank())]),
                "{}: shard {} of whole {} on rank {}", what, shard.shape(), whole.shape(), rank());
  COPPICE_CHECK(whole.shape()[0] == total, "{}: {} rows in all ranks, {} in the whole", what, total,
                whole.shape()[0]);
  COPPICE_CHECK(shard.is_contiguous() && whole.is_contiguous(), "{}: tensors must be contiguous",
                what);
}

void Communicator::all_reduce(Stream& stream, TensorView data, ReduceOp op) {
  COPPICE_CHECK(data.is_contiguous(), "all_reduce: {} must be contiguous", data.shape());
  counted(Collective::kAllReduce, bytes_of(data),
          [&](TraceScope&) { do_all_reduce(stream, data, op); });
}

void Communicator::all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                              std::span<const std::int64_t> rows) {
  check_rows("all_gather", shard, whole, rows);
  counted(Collective::kAllGather, bytes_of(shard),
          [&](TraceScope&) { do_all_gather(stream, shard, whole, rows); });
}

void Communicator::reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                                  std::span<const std::int64_t> rows) {
  check_rows("reduce_scatter", shard, whole, rows);
  counted(Collective::kReduceScatter, bytes_of(whole),
          [&](TraceScope&) { do_reduce_scatter(stream, whole, shard, rows); });
}

void Communicator::all_gather(Stream& stream, ConstTensorView shard, TensorView whole) {
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), shard.shape()[0]);
  all_gather(stream, shard, whole, rows);
}

void Communicator::reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard) {
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), shard.shape()[0]);
  reduce_scatter(stream, whole, shard, rows);
}

std::unique_ptr<Background> Communicator::start(Stream& stream, CollectiveCall collective,
                                                const BackgroundFacts&) {
  collective(stream);
  return nullptr;
}

Pending Communicator::started(Stream& stream, Collective collective, std::int64_t bytes,
                              CollectiveCall call) {
  Pending pending;
  if (!overlaps_ || size() == 1) {
    counted(collective, bytes, [&](TraceScope&) { call(stream); });
    return pending;
  }
  pending.comm_ = this;
  pending.collective_ = collective;
  pending.bytes_ = bytes;
  if (trace_ != nullptr) pending.trace_parent_ = trace_->innermost();
  counted(collective, bytes, [&](TraceScope& scope) {
    pending.background_ =
        start(stream, std::move(call), {.collective = collective, .bytes = bytes});
    // It gets its event, with the time it took, when it is finished.
    if (pending.background_ && pending.background_->is_timed()) scope.forget();
  });
  return pending;
}

void Communicator::finish(Stream& stream, const Pending& pending) {
  const char* name = name_of(pending.collective_).data();
  const auto start = std::chrono::steady_clock::now();
  {
    const TraceScope scope(trace_, TraceKind::kWait, name, {.axis = trace_axis_});
    pending.background_->finish(stream);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  counters_[static_cast<std::size_t>(pending.collective_)].seconds += seconds.count();
  if (trace_ != nullptr && pending.background_->is_timed()) {
    trace_->add_background(name, pending.background_->ran(), pending.trace_parent_,
                           {.bytes = pending.bytes_, .axis = trace_axis_});
  }
}

void Pending::finish(Stream& stream) {
  if (!background_) return;
  comm_->finish(stream, *this);
  background_.reset();
}

// What a call outlives: the rows are the caller's, and are kept.
Pending Communicator::start_all_reduce(Stream& stream, TensorView data, ReduceOp op) {
  COPPICE_CHECK(data.is_contiguous(), "all_reduce: {} must be contiguous", data.shape());
  return started(stream, Collective::kAllReduce, bytes_of(data),
                 [=, this](Stream& on) { do_all_reduce(on, data, op); });
}

Pending Communicator::start_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                                       std::span<const std::int64_t> rows) {
  check_rows("all_gather", shard, whole, rows);
  return started(stream, Collective::kAllGather, bytes_of(shard),
                 [=, this, kept = std::vector<std::int64_t>(rows.begin(), rows.end())](Stream& on) {
                   do_all_gather(on, shard, whole, kept);
                 });
}

Pending Communicator::start_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                                           std::span<const std::int64_t> rows) {
  check_rows("reduce_scatter", shard, whole, rows);
  return started(stream, Collective::kReduceScatter, bytes_of(whole),
                 [=, this, kept = std::vector<std::int64_t>(rows.begin(), rows.end())](Stream& on) {
                   do_reduce_scatter(on, whole, shard, kept);
                 });
}

void Communicator::broadcast(Stream& stream, TensorView data, int root) {
  COPPICE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
  COPPICE_CHECK(data.is_contiguous(), "broadcast: {} must be contiguous", data.shape());
  counted(Collective::kBroadcast, rank() == root ? bytes_of(data) : 0,
          [&](TraceScope&) { do_broadcast(stream, data, root); });
}

void Communicator::barrier(Stream& stream) {
  counted(Collective::kBarrier, 0, [&](TraceScope&) { do_barrier(stream); });
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

std::unique_ptr<Communicator> make_absent_communicator(int rank, int size) {
  COPPICE_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<AbsentCommunicator>(rank, size);
}

}  // namespace coppice
