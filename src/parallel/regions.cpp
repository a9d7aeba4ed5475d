#include "parallel/regions.hpp"

#include <numeric>
#include <vector>

#include "core/convert.hpp"

namespace coppice {
namespace {

void check_partial(const char* region, const Communicator& comm, ConstTensorView partial,
                   ConstTensorView sum) {
  COPPICE_CHECK(partial.dtype() == partial_dtype(comm, sum.dtype()),
                "{}: parts of {} for a sum of {} over {} ranks", region, name_of(partial.dtype()),
                name_of(sum.dtype()), comm.size());
}

Crossing sum_whole(const char* region, ExecContext& ctx, Communicator& tensor, TensorView partial,
                   TensorView sum) {
  check_partial(region, tensor, partial, sum);
  Pending pending;
  if (tensor.size() > 1) pending = tensor.start_all_reduce(ctx.stream, partial, ReduceOp::kSum);
  if (partial.bytes() == sum.bytes()) return Crossing(std::move(pending));
  return Crossing(std::move(pending), partial, sum);
}

Crossing sum_shards(const char* region, ExecContext& ctx, Communicator& tensor, TensorView partial,
                    TensorView shard, std::span<const std::int64_t> rows) {
  check_partial(region, tensor, partial, shard);
  if (partial.dtype() == shard.dtype()) {
    return Crossing(tensor.start_reduce_scatter(ctx.stream, partial, shard, rows));
  }
  const auto first = std::accumulate(rows.begin(), rows.begin() + tensor.rank(), std::int64_t{0});
  const TensorView sum = partial.rows(first, shard.shape()[0]);
  return Crossing(tensor.start_reduce_scatter(ctx.stream, partial, sum, rows), sum, shard);
}

std::vector<std::int64_t> equal_rows(const Communicator& comm, ConstTensorView shard) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(comm.size()), shard.shape()[0]);
}

}  // namespace

void Crossing::finish(ExecContext& ctx) {
  pending_.finish(ctx.stream);
  if (sum_) convert(ctx, *sum_, result_);
  sum_.reset();
}

Crossing CopyToTensorParallel::start_backward(ExecContext& ctx, Communicator& tensor,
                                              TensorView partial, TensorView dx) {
  return sum_whole("CopyToTensorParallel", ctx, tensor, partial, dx);
}

void CopyToTensorParallel::backward(ExecContext& ctx, Communicator& tensor, TensorView partial,
                                    TensorView dx) {
  start_backward(ctx, tensor, partial, dx).finish(ctx);
}

void ReduceFromTensorParallel::forward(ExecContext& ctx, Communicator& tensor, TensorView partial,
                                       TensorView y) {
  sum_whole("ReduceFromTensorParallel", ctx, tensor, partial, y).finish(ctx);
}

void GatherFromSequence::forward(ExecContext& ctx, Communicator& tensor, ConstTensorView shard,
                                 TensorView whole, std::span<const std::int64_t> rows) {
  if (rows.empty()) return tensor.all_gather(ctx.stream, shard, whole);
  tensor.all_gather(ctx.stream, shard, whole, rows);
}

void GatherFromSequence::backward(ExecContext& ctx, Communicator& tensor, TensorView d_whole,
                                  TensorView d_shard, std::span<const std::int64_t> rows) {
  const auto equal = equal_rows(tensor, d_shard);
  sum_shards("GatherFromSequence", ctx, tensor, d_whole, d_shard, rows.empty() ? equal : rows)
      .finish(ctx);
}

Crossing GatherFromSequence::start_forward(ExecContext& ctx, Communicator& tensor,
                                           ConstTensorView shard, TensorView whole) {
  return Crossing(tensor.start_all_gather(ctx.stream, shard, whole, equal_rows(tensor, shard)));
}

Crossing GatherFromSequence::start_backward(ExecContext& ctx, Communicator& tensor,
                                            TensorView d_whole, TensorView d_shard) {
  return sum_shards("GatherFromSequence", ctx, tensor, d_whole, d_shard,
                    equal_rows(tensor, d_shard));
}

void ReduceScatterToSequence::forward(ExecContext& ctx, Communicator& tensor, TensorView partial,
                                      TensorView shard) {
  sum_shards("ReduceScatterToSequence", ctx, tensor, partial, shard, equal_rows(tensor, shard))
      .finish(ctx);
}

void ReduceScatterToSequence::backward(ExecContext& ctx, Communicator& tensor,
                                       ConstTensorView d_shard, TensorView d_partial) {
  tensor.all_gather(ctx.stream, d_shard, d_partial);
}

void GatherSharedRows::forward(ExecContext& ctx, Communicator& context, ConstTensorView shard,
                               TensorView whole, std::span<const std::int64_t> rows) {
  context.all_gather(ctx.stream, shard, whole, rows);
}

Crossing GatherSharedRows::start_forward(ExecContext& ctx, Communicator& context,
                                         ConstTensorView shard, TensorView whole,
                                         std::span<const std::int64_t> rows) {
  return Crossing(context.start_all_gather(ctx.stream, shard, whole, rows));
}

void GatherSharedRows::backward(ExecContext& ctx, Communicator& context, ConstTensorView d_whole,
                                TensorView d_shard, std::span<const std::int64_t> rows) {
  context.reduce_scatter(ctx.stream, d_whole, d_shard, rows);
}

}  // namespace coppice
