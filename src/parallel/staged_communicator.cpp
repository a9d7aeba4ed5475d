#include "parallel/staged_communicator.hpp"

#include <numeric>
#include <utility>

#include "core/copy.hpp"
#include "core/cuda/runtime.hpp"

namespace coppice {
namespace {

bool is_on_host(ConstTensorView tensor) { return tensor.device().kind == DeviceKind::kCpu; }

}  // namespace

StagedCommunicator::~StagedCommunicator() {
  try {
    copied_back_.wait();
  } catch (const DeviceError&) {  // the device has failed, and fetches no more
  }
  cuda::free_pinned(block_);
}

void StagedCommunicator::wait(const Event& event, Wait) { event.wait(); }

// The block in the tensor's shape, once no device reads it any more.
TensorView StagedCommunicator::place_for(ConstTensorView tensor) {
  wait(std::exchange(copied_back_, {}), Wait::kCopiedBack);
  const auto bytes = tensor.numel() * size_of(tensor.dtype());
  if (bytes > block_bytes_) {
    cuda::free_pinned(std::exchange(block_, nullptr));
    block_bytes_ = 0;
    block_ = cuda::allocate_pinned(bytes);
    block_bytes_ = bytes;
  }
  return {block_, tensor.dtype(), tensor.shape()};
}

void StagedCommunicator::copy_out(Stream& stream, ConstTensorView from, TensorView to) {
  copy(stream, from, to);
  wait(stream.record(), Wait::kCopiedOut);
}

void StagedCommunicator::copy_back(Stream& stream, ConstTensorView from, TensorView to) {
  copy(stream, from, to);
  copied_back_ = stream.record();
}

void StagedCommunicator::do_all_reduce(Stream& stream, TensorView data, ReduceOp op) {
  if (is_on_host(data)) return host_->all_reduce(stream, data, op);
  const TensorView staged = place_for(data);
  copy_out(stream, data, staged);
  host_->all_reduce(stream, staged, op);
  copy_back(stream, staged, data);
}

void StagedCommunicator::do_all_gather(Stream& stream, ConstTensorView shard, TensorView whole,
                                       std::span<const std::int64_t> rows) {
  if (is_on_host(whole)) return host_->all_gather(stream, shard, whole, rows);
  const TensorView staged = place_for(whole);
  const auto first = std::accumulate(rows.begin(), rows.begin() + rank(), std::int64_t{0});
  const TensorView mine = staged.rows(first, shard.shape()[0]);
  copy_out(stream, shard, mine);
  host_->all_gather(stream, mine, staged, rows);
  copy_back(stream, staged, whole);
}

void StagedCommunicator::do_reduce_scatter(Stream& stream, ConstTensorView whole, TensorView shard,
                                           std::span<const std::int64_t> rows) {
  if (is_on_host(whole)) return host_->reduce_scatter(stream, whole, shard, rows);
  const TensorView staged = place_for(whole);
  const auto first = std::accumulate(rows.begin(), rows.begin() + rank(), std::int64_t{0});
  const TensorView mine = staged.rows(first, shard.shape()[0]);
  copy_out(stream, whole, staged);
  host_->reduce_scatter(stream, staged, mine, rows);
  copy_back(stream, mine, shard);
}

void StagedCommunicator::do_broadcast(Stream& stream, TensorView data, int root) {
  if (is_on_host(data)) return host_->broadcast(stream, data, root);
  const TensorView staged = place_for(data);
  if (rank() == root) copy_out(stream, data, staged);
  host_->broadcast(stream, staged, root);
  if (rank() != root) copy_back(stream, staged, data);
}

void StagedCommunicator::do_barrier(Stream& stream) {
  stream.synchronize();
  host_->barrier(stream);
}

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host) {
  return std::make_unique<StagedCommunicator>(std::move(host));
}

}  // namespace coppice
