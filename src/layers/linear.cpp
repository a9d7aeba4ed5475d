// Arithmetic of linears. The matrix work is core's gemm.
#include "layers/linear.hpp"

#include "core/gemm.hpp"
#include "layers/rows.hpp"

namespace coppice {

void LinearParameters::collect(std::vector<Parameter*>& parameters) {
  parameters.push_back(&weight);
  if (bias) parameters.push_back(&*bias);
}

LinearParameters make_linear_parameters(const ParameterStorage& storage, const LinearConfig& config,
                                        const std::vector<PartShard>& weights,
                                        const std::vector<PartShard>& biases) {
  LinearParameters parameters{
      .weight = make_parameter(storage, config.name + ".weight", weights, WeightDecay::kYes),
      .bias = std::nullopt};
  parameters.weight.product_sets_grad = true;
  if (config.bias) {
    parameters.bias = make_parameter(storage, config.name + ".bias", biases, WeightDecay::kNo);
  }
  return parameters;
}

void matrix_forward(ExecContext& ctx, const Parameter& weight, ConstTensorView x, TensorView y) {
  gemm(ctx, x, weight.value, y, {.b = Transpose::kYes});
}

void matrix_backward(ExecContext& ctx, Parameter& weight, ConstTensorView x, ConstTensorView dy,
                     std::optional<TensorView> dx) {
  if (weight.trainable) {
    // dW += dy^T x
    gemm(ctx, dy, x, weight.grad, {.a = Transpose::kYes, .beta = weight.grad_is_unset ? 0.0 : 1.0});
    weight.grad_is_unset = false;
  }
  if (dx) gemm(ctx, dy, weight.value, *dx);  // last, because dx may be x
}

void linear_forward(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView x,
                    TensorView y) {
  matrix_forward(ctx, parameters.weight, x, y);
  if (parameters.bias) add_bias(ctx, parameters.bias->value, y);
}

void linear_backward(ExecContext& ctx, LinearParameters& parameters, ConstTensorView x,
                     ConstTensorView dy, std::optional<TensorView> dx) {
  if (parameters.bias && parameters.bias->trainable) {
    bias_backward(ctx, dy, parameters.bias->grad);
  }
  matrix_backward(ctx, parameters.weight, x, dy, dx);
}

}  // namespace coppice
