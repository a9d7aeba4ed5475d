#include "parallel/gradient_reducer.hpp"

#include <algorithm>
#include <utility>

namespace coppice {
namespace {

// What is left of a step's parameters once the first were told one run after the other.
std::span<Parameter* const> untold(std::span<Parameter* const> parameters,
                                   std::vector<const Parameter*>& told) {
  COPPICE_CHECK(
      told.size() <= parameters.size() && std::equal(told.begin(), told.end(), parameters.begin()),
      "{} parameters begun with are not the first of {}", told.size(), parameters.size());
  return parameters.subspan(std::exchange(told, {}).size());
}

void finish(ExecContext& ctx, std::vector<Pending>& pending) {
  for (Pending& one : std::exchange(pending, {})) one.finish(ctx.stream);
}

}  // namespace

RowShare GradientReducer::updated() const { return shards() ? spoken_for() : RowShare{}; }

// Whose sum comes before that over the replicas; null where there is none.
Communicator* GradientReducer::tensor_ranks_of(const ParameterPart& part) {
  Communicator* ranks = nullptr;
  switch (part.reduction) {
    case ReductionGroup::kNone:
      break;
    case ReductionGroup::kTensor:
      ranks = &grid_.tensor();
      break;
    case ReductionGroup::kSharedKeyValueHead:
      ranks = &grid_.shared_key_value();
      break;
  }
  return ranks != nullptr && ranks->size() > 1 ? ranks : nullptr;
}

bool GradientReducer::has_tensor_sums(const Parameter& parameter) {
  return std::ranges::any_of(parameter.parts,
                             [&](const auto& part) { return tensor_ranks_of(part) != nullptr; });
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
  summed_.insert(summed_.end(), parameters.begin(), parameters.end());
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable || has_tensor_sums(*parameter)) continue;
    COPPICE_CHECK(!parameter->grad_is_unset, "a sum of {}'s gradient, which is not set",
                  parameter->name);
    sums_.push_back(start_sum(ctx, *parameter));
  }
}

void GradientReducer::complete(ExecContext& ctx, std::span<Parameter* const> parameters) {
  start(ctx, untold(parameters, summed_));
  summed_.clear();
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable || !has_tensor_sums(*parameter)) continue;
    for (const ParameterPart& part : parameter->parts) {
      const TensorView grad = rows_of(part, parameter->grad);
      Communicator* ranks = tensor_ranks_of(part);
      if (ranks != nullptr && grad.numel() > 0) ranks->all_reduce(ctx.stream, grad, ReduceOp::kSum);
    }
    sums_.push_back(start_sum(ctx, *parameter));
  }
  finish(ctx, sums_);
}

void GradientReducer::start_gather(ExecContext& ctx, std::span<Parameter* const> parameters) {
  gathered_.insert(gathered_.end(), parameters.begin(), parameters.end());
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
  start_gather(ctx, untold(parameters, gathered_));
  gathered_.clear();
  finish(ctx, gathers_);
}

}  // namespace coppice
