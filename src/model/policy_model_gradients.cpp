// The beginnings and ends of a model's sums of gradients: what is zero, what only counts as zero,
// and in which order a pass ends with them.
#include <algorithm>

#include "core/copy.hpp"
#include "core/parallel_for.hpp"
#include "model/policy_model.hpp"

namespace coppice {
namespace {

/// The gradients of these.
void fill_with_zeros(ExecContext& ctx, std::span<Parameter* const> parameters) {
  const TraceScope scope(ctx.trace, "zero_gradients");
  if (ctx.device().kind != DeviceKind::kCpu) {
    for (Parameter* parameter : parameters) set_zero(ctx.stream, parameter->grad);
    return;
  }
  // One thread does not fill the memory's bandwidth.
  constexpr std::int64_t kBlock = std::int64_t{1} << 18;
  std::vector<TensorView> pieces;
  for (Parameter* parameter : parameters) {
    const TensorView flat = parameter->grad.view().reshape({parameter->grad.numel()});
    for (std::int64_t at = 0; at < flat.numel(); at += kBlock) {
      pieces.push_back(flat.rows(at, std::min(kBlock, flat.numel() - at)));
    }
  }
  parallel_for(ctx, std::ssize(pieces),
               [&](std::int64_t i) { set_zero(ctx.stream, pieces[static_cast<std::size_t>(i)]); });
}

void settle(ExecContext& ctx, std::span<Parameter* const> parameters) {
  std::vector<Parameter*> unset;
  for (Parameter* parameter : parameters) {
    if (parameter->grad_is_unset) unset.push_back(parameter);
    parameter->grad_is_unset = false;
  }
  if (!unset.empty()) fill_with_zeros(ctx, unset);
}

}  // namespace

std::vector<Parameter*> PolicyModel::head_parameters() {
  std::vector<Parameter*> parameters;
  if (lm_head_) parameters.push_back(&*lm_head_);
  final_norm_.collect(parameters);
  return parameters;
}

std::vector<Parameter*> PolicyModel::parameters_by_backward() {
  std::vector<Parameter*> parameters = head_parameters();
  for (std::size_t layer = blocks_.size(); layer-- > 0;) blocks_[layer].collect(parameters);
  embedding_.collect(parameters);
  return parameters;
}

// Gradients that no product has set are made what they are.
void PolicyModel::tell(ExecContext& ctx, const GradientsDone& done,
                       std::span<Parameter* const> parameters) {
  if (!done) return;
  settle(ctx, parameters);
  done(parameters);
}

void PolicyModel::zero_gradients(ExecContext& ctx) {
  std::vector<Parameter*> now;
  for (Parameter* parameter : parameters()) {
    if (!parameter->trainable) continue;
    parameter->grad_is_unset = parameter->product_sets_grad;
    if (!parameter->grad_is_unset) now.push_back(parameter);
  }
  fill_with_zeros(ctx, now);
}

void PolicyModel::settle_gradients(ExecContext& ctx) { settle(ctx, parameters()); }

}  // namespace coppice
