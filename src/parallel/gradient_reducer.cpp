#include "parallel/gradient_reducer.hpp"

#include <algorithm>
#include <utility>

namespace coppice {
namespace {

void sum(ExecContext& ctx, Communicator& comm, TensorView data) {
  if (comm.size() > 1 && data.numel() > 0) comm.all_reduce(ctx.stream, data, ReduceOp::kSum);
}

}  // namespace

RowShare GradientReducer::updated() const { return shards() ? spoken_for() : RowShare{}; }

// Whether a sum over tensor ranks comes before that over the replicas.
bool GradientReducer::has_tensor_sums(const Parameter& parameter) const {
  return std::any_of(parameter.parts.begin(), parameter.parts.end(), [&](const auto& part) {
    switch (part.reduction) {
      case ReductionGroup::kNone:
        return false;
      case ReductionGroup::kTensor:
        return grid_.tensor().size() > 1;
      case ReductionGroup::kSharedKeyValueHead:
        return grid_.shared_key_value().size() > 1;
    }
    return false;
  });
}

void GradientReducer::sum_over_tensor(ExecContext& ctx, Parameter& parameter) {
  for (const ParameterPart& part : parameter.parts) {
    switch (part.reduction) {
      case ReductionGroup::kNone:
        break;
      case ReductionGroup::kTensor:
        sum(ctx, grid_.tensor(), rows_of(part, parameter.grad));
        break;
      case ReductionGroup::kSharedKeyValueHead:
        sum(ctx, grid_.shared_key_value(), rows_of(part, parameter.grad));
        break;
    }
  }
}

Pending GradientReducer::start_sum(ExecContext& ctx, Parameter& parameter) {
  Communicator& replicas = grid_.replicas();
  const TensorView grad = parameter.grad;
  if (replicas.size() == 1) return {};
  if (shards()) {
    const RowRange mine = updated().of(parameter);
    return replicas.start_reduce_scatter(ctx.stream, grad, grad.rows(mine.begin, mine.count()),
                                         updated().counts(parameter.rows()));
  }
  if (grad.numel() == 0) return {};
  return replicas.start_all_reduce(ctx.stream, grad, ReduceOp::kSum);
}

void GradientReducer::start(ExecContext& ctx, std::span<Parameter* const> parameters) {
  told_ += parameters.size();
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable || has_tensor_sums(*parameter)) continue;
    COPPICE_CHECK(!parameter->grad_is_unset, "a sum of {}'s gradient, which is not set",
                  parameter->name);
    sums_.push_back(start_sum(ctx, *parameter));
  }
}

void GradientReducer::complete(ExecContext& ctx, std::span<Parameter* const> parameters) {
  COPPICE_CHECK(told_ <= parameters.size(), "{} parameters told before, {} in all", told_,
                parameters.size());
  start(ctx, parameters.subspan(told_));
  told_ = 0;
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable || !has_tensor_sums(*parameter)) continue;
    sum_over_tensor(ctx, *parameter);
    sums_.push_back(start_sum(ctx, *parameter));
  }
  for (Pending& pending : std::exchange(sums_, {})) pending.finish(ctx.stream);
}

void GradientReducer::start_gather(ExecContext& ctx, std::span<Parameter* const> parameters) {
  gather_told_ += parameters.size();
  if (!shards()) return;
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    const TensorView value = parameter->value;
    const RowRange mine = updated().of(*parameter);
    gathers_.push_back(
        grid_.replicas().start_all_gather(ctx.stream, value.rows(mine.begin, mine.count()), value,
                                          updated().counts(value.shape()[0])));
  }
}

void GradientReducer::gather_values(ExecContext& ctx, std::span<Parameter* const> parameters) {
  COPPICE_CHECK(gather_told_ <= parameters.size(), "{} parameters told before, {} in all",
                gather_told_, parameters.size());
  start_gather(ctx, parameters.subspan(gather_told_));
  gather_told_ = 0;
  for (Pending& pending : std::exchange(gathers_, {})) pending.finish(ctx.stream);
}

}  // namespace coppice
