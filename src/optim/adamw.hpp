#pragma once
// AdamW with decoupled weight decay over the model's parameters. Which learning rate a step takes,
// how gradients are clipped and whether a step is skipped is decided by the caller; what it changes
// are the parameters' weights at full precision, and values of 16 bits follow by rounding.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/exec_context.hpp"
#include "parallel/row_share.hpp"

namespace coppice {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

/// One parameter's share of an update; all have its shape.
struct AdamWTensors {
  TensorView value;
  ConstTensorView grad;
  TensorView exp_avg;
  TensorView exp_avg_sq;
  bool decay = false;
  /// bf16, where the model computes with rounded weights.
  std::optional<TensorView> rounded = std::nullopt;
};

/// An update's numbers, in double; they are rounded once to the dtype of the tensors.
struct AdamWCoefficients {
  double grad_scale;       ///< g = grad_scale * grad
  double keep;             ///< value *= keep, 1 - learning_rate * weight_decay; where decay is set
  double one_minus_beta1;  ///< exp_avg += one_minus_beta1 * (g - exp_avg)
  double beta2;            ///< exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g
  double one_minus_beta2;
  double step_size;  ///< value -= step_size * exp_avg / (sqrt(exp_avg_sq) * denominator_scale
  double denominator_scale;  ///<                             + epsilon)
  double epsilon;
};

/// One pass over memory: every element of every tensor is read and written once.
///
/// Layout    contiguous
/// Dtypes    all f32 or all f64, but for rounded; on CUDA f32
/// Effects   changes value, exp_avg and exp_avg_sq; overwrites rounded with value, rounded to
///           nearest
/// Errors    ContractError if the tensors of a parameter disagree
/// Repeats   bitwise, for any thread count, on one kind of CPU
/// Source    Loshchilov and Hutter, arXiv:1711.05101; the order of operations is PyTorch's
/// Oracle    tests/optim/adamw_test.cpp, EqualsTheDoubleReferenceOverManySteps
void adamw_update(ExecContext& ctx, std::span<const AdamWTensors> tensors,
                  const AdamWCoefficients& coefficients);

/// The moments of a model's parameters and the update that uses them. Frozen parameters have none.
/// Padding rows, whose gradient is always 0, stay 0.
///
/// Parallel  local: of every parameter it holds and updates the rows of one share; who completes
///           their gradients and hands the values on is parallel/gradient_reducer.hpp
class AdamW {
 public:
  struct Moments {
    Tensor exp_avg;     ///< of the share's rows, dtype of the parameter's gradient
    Tensor exp_avg_sq;  ///< the same
  };

  /// Moments start at zero. The parameters must outlive this and keep their addresses.
  AdamW(AdamWConfig config, std::span<Parameter* const> parameters, Memory& memory,
        RowShare share = {});

  /// What is told of parameters that are updated, in their order.
  using Updated = std::function<void(std::span<Parameter* const>)>;

  /// One applied update with gradients times `grad_scale` (clipping). `updated`, where given, is
  /// told of the parameters run by run while later ones wait, so that their values can go to
  /// others.
  void step(ExecContext& ctx, double learning_rate, double grad_scale, const Updated& updated = {});

  std::int64_t applied_steps() const { return applied_steps_; }
  /// For resume; the moments are then filled through moments().
  void set_applied_steps(std::int64_t steps) { applied_steps_ = steps; }

  std::span<Parameter* const> parameters() const { return parameters_; }
  /// One entry per parameter, in the order of parameters(); without values where it is frozen.
  std::span<Moments> moments() { return moments_; }
  const AdamWConfig& config() const { return config_; }
  const RowShare& share() const { return share_; }

 private:
  AdamWConfig config_;
  RowShare share_;
  std::vector<Parameter*> parameters_;
  std::vector<Moments> moments_;
  std::int64_t applied_steps_ = 0;
};

namespace cpu {
void adamw_update(ExecContext& ctx, std::span<const AdamWTensors> tensors,
                  const AdamWCoefficients& coefficients);
}
namespace cuda {
void adamw_update(ExecContext& ctx, std::span<const AdamWTensors> tensors,
                  const AdamWCoefficients& coefficients);
}

}  // namespace coppice
