#include "optim/adamw.hpp"

#include <cmath>

#include "core/build_config.hpp"
#include "core/copy.hpp"

namespace coppice {
namespace {

Tensor zeros(Memory& memory, ConstTensorView like) {
  Tensor tensor(memory, like.dtype(), like.shape(), "moments");
  set_zero(memory, tensor);
  return tensor;
}

}  // namespace

void adamw_update(ExecContext& ctx, std::span<const AdamWTensors> tensors,
                  const AdamWCoefficients& coefficients) {
  for (const AdamWTensors& t : tensors) {
    COPPICE_CHECK(t.grad.spec() == t.value.spec() && t.exp_avg.spec() == t.value.spec() &&
                      t.exp_avg_sq.spec() == t.value.spec(),
                  "value {}, gradient {} and moments {}, {} differ in shape, dtype or device",
                  t.value.shape(), t.grad.shape(), t.exp_avg.shape(), t.exp_avg_sq.shape());
    COPPICE_CHECK(t.value.is_contiguous() && t.grad.is_contiguous() && t.exp_avg.is_contiguous() &&
                      t.exp_avg_sq.is_contiguous(),
                  "adamw_update takes contiguous tensors");
    COPPICE_CHECK(!t.rounded || (t.rounded->shape() == t.value.shape() &&
                                 t.rounded->dtype() == DType::kBF16 &&
                                 t.value.dtype() == DType::kF32 && t.rounded->is_contiguous()),
                  "value {} {} rounded into {} {}", name_of(t.value.dtype()), t.value.shape(),
                  name_of(t.rounded->dtype()), t.rounded->shape());
  }
  const TraceScope scope(ctx.trace, "adamw_update");
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::adamw_update(ctx, tensors, coefficients);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::adamw_update(ctx, tensors, coefficients);
      break;
  }
  throw_no_backend("adamw_update", ctx.device());
}

AdamW::AdamW(AdamWConfig config, std::span<Parameter* const> parameters, Memory& memory,
             RowShare share)
    : config_(config), share_(share), parameters_(parameters.begin(), parameters.end()) {
  moments_.reserve(parameters_.size());
  for (const Parameter* parameter : parameters_) {
    Moments& moments = moments_.emplace_back();
    if (!parameter->trainable) continue;
    COPPICE_CHECK(parameter->grad.has_value() || parameter->value.numel() == 0,
                  "{} has no gradient", parameter->name);
    const RowRange rows = share_.of(*parameter);
    const ConstTensorView grad = ConstTensorView(parameter->grad).rows(rows.begin, rows.count());
    moments.exp_avg = zeros(memory, grad);
    moments.exp_avg_sq = zeros(memory, grad);
  }
}

void AdamW::step(ExecContext& ctx, double learning_rate, double grad_scale,
                 const Updated& updated) {
  ++applied_steps_;
  const double s = static_cast<double>(applied_steps_);
  const double correction1 = 1.0 - std::pow(config_.beta1, s);
  const double correction2 = 1.0 - std::pow(config_.beta2, s);
  const AdamWCoefficients coefficients{
      .grad_scale = grad_scale,
      .keep = 1.0 - learning_rate * config_.weight_decay,
      .one_minus_beta1 = 1.0 - config_.beta1,
      .beta2 = config_.beta2,
      .one_minus_beta2 = 1.0 - config_.beta2,
      .step_size = learning_rate / correction1,
      .denominator_scale = 1.0 / std::sqrt(correction2),
      .epsilon = config_.epsilon,
  };
  // Enough for a thread's worth of memory traffic beside the cost of a call.
  constexpr std::int64_t kRunElements = std::int64_t{1} << 20;
  std::vector<AdamWTensors> tensors;
  std::int64_t elements = 0;
  for (std::size_t i = 0, begin = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    const bool last = i + 1 == parameters_.size();
    if (parameter.trainable && parameter.value.numel() > 0) {
      const RowRange rows = share_.of(parameter);
      AdamWTensors& update = tensors.emplace_back(
          AdamWTensors{parameter.weights().rows(rows.begin, rows.count()),
                       parameter.grad.view().rows(rows.begin, rows.count()), moments_[i].exp_avg,
                       moments_[i].exp_avg_sq, parameter.weight_decay == WeightDecay::kYes});
      if (parameter.has_master()) {
        update.rounded = parameter.value.view().rows(rows.begin, rows.count());
      }
      elements += update.value.numel();
    }
    if (!last && (!updated || elements < kRunElements)) continue;
    adamw_update(ctx, tensors, coefficients);
    if (updated) updated(std::span(parameters_).subspan(begin, i + 1 - begin));
    tensors.clear();
    elements = 0;
    begin = i + 1;
  }
}

}  // namespace coppice
