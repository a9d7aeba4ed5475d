#include "parallel/gradient_reducer.hpp"

namespace coppice {
namespace {

void sum(ExecContext& ctx, Communicator& comm, TensorView data) {
  if (comm.size() > 1 && data.numel() > 0) comm.all_reduce(ctx.stream, data, ReduceOp::kSum);
}

}  // namespace

RowShare GradientReducer::updated() const { return shards() ? spoken_for() : RowShare{}; }

void GradientReducer::complete(ExecContext& ctx, std::span<Parameter* const> parameters) {
  Communicator& replicas = grid_.replicas();
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
    const RowRange mine = updated().of(*parameter);
    replicas.reduce_scatter(ctx.stream, grad, grad.rows(mine.begin, mine.count()),
                            updated().counts(parameter->rows()));
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

}  // namespace coppice
