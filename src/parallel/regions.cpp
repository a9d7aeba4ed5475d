#include "parallel/regions.hpp"

namespace coppice {

void CopyToTensorParallel::backward(ExecContext& ctx, Communicator& tensor, TensorView dx) {
  if (tensor.size() > 1) tensor.all_reduce(ctx.stream, dx, ReduceOp::kSum);
}

void ReduceFromTensorParallel::forward(ExecContext& ctx, Communicator& tensor, TensorView partial) {
  if (tensor.size() > 1) tensor.all_reduce(ctx.stream, partial, ReduceOp::kSum);
}

void GatherFromSequence::forward(ExecContext& ctx, Communicator& tensor, ConstTensorView shard,
                                 TensorView whole, std::span<const std::int64_t> rows) {
  if (rows.empty()) return tensor.all_gather(ctx.stream, shard, whole);
  tensor.all_gather(ctx.stream, shard, whole, rows);
}

void GatherFromSequence::backward(ExecContext& ctx, Communicator& tensor, ConstTensorView d_whole,
                                  TensorView d_shard, std::span<const std::int64_t> rows) {
  if (rows.empty()) return tensor.reduce_scatter(ctx.stream, d_whole, d_shard);
  tensor.reduce_scatter(ctx.stream, d_whole, d_shard, rows);
}

void ReduceScatterToSequence::forward(ExecContext& ctx, Communicator& tensor,
                                      ConstTensorView partial, TensorView shard) {
  tensor.reduce_scatter(ctx.stream, partial, shard);
}

void ReduceScatterToSequence::backward(ExecContext& ctx, Communicator& tensor,
                                       ConstTensorView d_shard, TensorView d_partial) {
  tensor.all_gather(ctx.stream, d_shard, d_partial);
}

void GatherSharedRows::forward(ExecContext& ctx, Communicator& context, ConstTensorView shard,
                               TensorView whole, std::span<const std::int64_t> rows) {
  context.all_gather(ctx.stream, shard, whole, rows);
}

void GatherSharedRows::backward(ExecContext& ctx, Communicator& context, ConstTensorView d_whole,
                                TensorView d_shard, std::span<const std::int64_t> rows) {
  context.reduce_scatter(ctx.stream, d_whole, d_shard, rows);
}

}  // namespace coppice
