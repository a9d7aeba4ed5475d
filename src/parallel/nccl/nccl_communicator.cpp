#include "parallel/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "parallel/exchange.hpp"

namespace coppice {
namespace {

bool is_on_host(ConstTensorView tensor) { return tensor.device().kind == DeviceKind::kCpu; }

bool is_even(std::span<const std::int64_t> rows) {
  return std::ranges::all_of(rows, [&](std::int64_t count) { return count == rows[0]; });
}

// Calls add(rank, its rows of `whole`) for each rank that holds any.
void for_each_shard(auto whole, std::span<const std::int64_t> rows, const auto& add) {
  std::int64_t first = 0;
  for (int rank = 0; rank < std::ssize(rows); ++rank) {
    const auto count = rows[static_cast<std::size_t>(rank)];
    if (count > 0) add(rank, whole.rows(first, count));
    first += count;
  }
}

nccl::ConnectionPtr begin(Communicator& host, const Device& device, const std::string& axis) {
  nccl::UniqueId id;
  if (host.rank() == 0) id = nccl::make_unique_id();
  const std::string text = broadcast_text(host, {id.bytes.data(), id.bytes.size()});
  std::copy_n(text.begin(), id.bytes.size(), id.bytes.begin());
  return nccl::begin(device, id, host.rank(), host.size(), axis);
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, std::string axis,
                                   Device device, std::shared_ptr<NcclWatch> watch)
    : host_(std::move(host)),
      watch_(std::move(watch)),
      stream_(device),
      connection_(begin(*host_, device, axis)),
      axis_(watch_->add(*connection_, std::move(axis))),
      exceptions_at_start_(std::uncaught_exceptions()) {
  stream_.state().observer = watch_;
  try {
    watch_->wait_for_start(axis_);
  } catch (...) {
    watch_->remove(axis_);
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  // During unwinding peers may never come: nobody is waited for, the connection is aborted.
  if (std::uncaught_exceptions() <= exceptions_at_start_) watch_->wait_for_end(axis_);
  watch_->remove(axis_);
  connection_.reset();  // before its stream, which would wait for work that nobody ends
}

void NcclCommunicator::order(const Event& earlier, Stream& later, Order) { later.wait(earlier); }

// The axis's stream runs it; the caller's goes on, and waits where the result is needed.
class NcclCommunicator::UnderCompute final : public Background {
 public:
  UnderCompute(NcclCommunicator& comm, Event done) : comm_(comm), done_(std::move(done)) {}
  void finish(Stream& stream) override { comm_.order(done_, stream, Order::kBeforeResults); }

 private:
  NcclCommunicator& comm_;
  Event done_;
};

std::unique_ptr<Background> NcclCommunicator::start(Stream& stream, CollectiveCall collective,
                                                    const BackgroundFacts&) {
  if (stream.device().kind == DeviceKind::kCpu) {  // tensors of the host
    collective(stream);
    return nullptr;
  }
  // Whoever waits for this stream now waits for other ranks too.
  stream.state().observer = watch_;
  order(stream.record(), stream_, Order::kAfterInputs);
  collective(stream_);
  return std::make_unique<UnderCompute>(*this, stream_.record());
}

void NcclCommunicator::run(Stream& stream, Collective collective, ConstTensorView payload,
                           std::span<const nccl::Call> group) {
  watch_->throw_if_failed();
  COPPICE_CHECK(stream.device() == stream_.device(), "a collective of {} on a stream of {}",
                stream_.device().to_string(), stream.device().to_string());
  if (group.empty()) return;
  const bool is_started = &stream == &stream_;  // start() and finish() order it
  if (!is_started) {
    stream.state().observer = watch_;
    order(stream.record(), stream_, Order::kAfterInputs);
  }
  watch_->begin(axis_, collective, payload.numel() * size_of(payload.dtype()), stream_.record());
  try {
    nccl::issue(*connection_, stream_, group);
  } catch (const CommError&) {
    watch_->throw_if_failed();  // why it was aborted
    throw;
  }
  watch_->done(axis_, stream_.record());
  if (!is_started) order(stream_.record(), stream, Order::kBeforeResults);
}

void NcclCommunicator::do_all_reduce(Stream& stream, TensorView data, ReduceOp op) {
  if (is_on_host(data)) return host_->all_reduce(stream, data, op);
  if (data.numel() == 0) return;
  const nccl::Call call{.kind = nccl::CallKind::kAllReduce,
                        .send = data.bytes(),
                        .receive = data.bytes(),
                        .count = data.numel(),
                        .dtype = data.dtype(),
                        .op = op};
  run(stream, Collective::kAllReduce, data, {&call, 1});
}

void NcclCommunicator::do_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                                     std::span<const std::int64_t> rows) {
  if (is_on_host(whole)) return host_->all_gather(stream, shard, whole, rows);
  if (whole.numel() == 0) return;
  std::vector<nccl::Call> group;
  if (is_even(rows)) {
    group.push_back({.kind = nccl::CallKind::kAllGather,
                     .send = shard.bytes(),
                     .receive = whole.bytes(),
                     .count = shard.numel(),
                     .dtype = whole.dtype()});
  } else {
    for_each_shard(whole, rows, [&](int root, TensorView place) {
      group.push_back({.kind = nccl::CallKind::kBroadcast,
                       .send = root == rank() ? shard.bytes() : place.bytes(),
                       .receive = place.bytes(),
                       .count = place.numel(),
                       .dtype = whole.dtype(),
                       .root = root});
    });
  }
  run(stream, Collective::kAllGather, shard, group);
}

void NcclCommunicator::do_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                                         std::span<const std::int64_t> rows) {
  if (is_on_host(whole)) return host_->reduce_scatter(stream, whole, shard, rows);
  if (whole.numel() == 0) return;
  std::vector<nccl::Call> group;
  if (is_even(rows)) {
    group.push_back({.kind = nccl::CallKind::kReduceScatter,
                     .send = whole.bytes(),
                     .receive = shard.bytes(),
                     .count = shard.numel(),
                     .dtype = whole.dtype()});
  } else {
    for_each_shard(whole, rows, [&](int root, ConstTensorView place) {
      group.push_back({.kind = nccl::CallKind::kReduce,
                       .send = place.bytes(),
                       .receive = root == rank() ? shard.bytes() : nullptr,
                       .count = place.numel(),
                       .dtype = whole.dtype(),
                       .root = root});
    });
  }
  run(stream, Collective::kReduceScatter, whole, group);
}

void NcclCommunicator::do_broadcast(Stream& stream, TensorView data, int root) {
  if (is_on_host(data)) return host_->broadcast(stream, data, root);
  if (data.numel() == 0) return;
  const nccl::Call call{.kind = nccl::CallKind::kBroadcast,
                        .send = data.bytes(),
                        .receive = data.bytes(),
                        .count = data.numel(),
                        .dtype = data.dtype(),
                        .root = root};
  run(stream, Collective::kBroadcast, data, {&call, 1});
}

void NcclCommunicator::do_barrier(Stream& stream) {
  stream.synchronize();
  host_->barrier(stream);
}

std::shared_ptr<NcclWatch> make_nccl_watch(MpiSession& session, WatchdogConfig watchdog) {
  return std::make_shared<NcclWatch>(session, std::move(watchdog));
}

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     std::string axis, Device device,
                                                     std::shared_ptr<NcclWatch> watch) {
  return std::make_unique<NcclCommunicator>(std::move(host), std::move(axis), device,
                                            std::move(watch));
}

}  // namespace coppice
