#include "parallel/gradient_reducer.hpp"

#include <algorithm>
#include <cstring>

namespace coppice {
namespace {

void sum(ExecContext& ctx, Communicator& comm, TensorView data) {
  if (comm.size() > 1 && data.numel() > 0) comm.all_reduce(ctx.stream, data, ReduceOp::kSum);
}

void copy(ConstTensorView from, TensorView to) {
  if (from.numel() == 0) return;
  std::memcpy(to.bytes(), from.bytes(),
              static_cast<std::size_t>(from.numel() * size_of(from.dtype())));
}

}  // namespace

RowShare GradientReducer::updated() const { return shards() ? spoken_for() : RowShare{}; }

void GradientReducer::complete(ExecContext& ctx, std::span<Parameter* const> parameters) {
  Communicator& replicas = grid_.replicas();
  ctx.scratch.reserve(reduction_scratch_bytes(parameters, zero_, replicas.size()));
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    const TensorView grad = parameter->grad;
    for (const ParameterPart& part : parameter->parts) {
      switch (part.reduction) {
        case ReductionGroup::kNone:
          break;
        case ReductionGroup::kTensor:
          sum(ctx, grid_.tensor(), rows_of(part, grad));
          break;
        case ReductionGroup::kSharedKeyValueHead:
          sum(ctx, grid_.shared_key_value(), rows_of(part, grad));
          break;
      }
    }
    if (!shards()) {
      sum(ctx, replicas, grad);
      continue;
    }
    const std::int64_t rows = grad.shape()[0];
    const RowRange mine = updated().of(rows);
    ScratchScope scratch(ctx.scratch);
    const TensorView shard = scratch.lease(grad.dtype(), grad.shape().with(0, mine.count()));
    replicas.reduce_scatter(ctx.stream, grad, shard, updated().counts(rows));
    copy(shard, grad.rows(mine.begin, mine.count()));
  }
}

void GradientReducer::gather_values(ExecContext& ctx, std::span<Parameter* const> parameters) {
  if (!shards()) return;
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    const TensorView value = parameter->value;
    const RowRange mine = updated().of(*parameter);
    grid_.replicas().all_gather(ctx.stream, value.rows(mine.begin, mine.count()), value,
                                updated().counts(value.shape()[0]));
  }
}

std::int64_t reduction_scratch_bytes(std::span<Parameter* const> parameters, Zero zero,
                                     int replicas) {
  if (zero == Zero::kNone || replicas == 1) return 0;
  std::int64_t most = 0;
  for (const Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    most = std::max(
        most, reduction_scratch_bytes(parameter->grad.dtype(), parameter->grad.shape(), replicas));
  }
  return most;
}

std::int64_t reduction_scratch_bytes(DType dtype, const Shape& shape, int replicas) {
  // The last place has the most rows, or as many as any.
  const auto rows = RowShare{replicas - 1, replicas}.of(shape[0]).count();
  return Arena::leased_bytes(dtype, shape.with(0, rows));
}

}  // namespace coppice
