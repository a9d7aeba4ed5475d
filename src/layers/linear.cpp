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

namespace {
void matrix_weight_gradient(ExecContext& ctx, Parameter& weight, ConstTensorView x,
                            ConstTensorView dy) {
  if (!weight.trainable) return;
  // dW += dy^T x
  gemm(ctx, dy, x, weight.grad, {.a = Transpose::kYes, .beta = weight.grad_is_unset ? 0.0 : 1.0});
  weight.grad_is_unset = false;
}
}  // namespace

void matrix_backward(ExecContext& ctx, Parameter& weight, ConstTensorView x, ConstTensorView dy,
                     std::optional<TensorView> dx) {
  matrix_weight_gradient(ctx, weight, x, dy);
  if (dx) gemm(ctx, dy, weight.value, *dx);  // last, because dx may be x
}

void linear_forward(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView x,
                    TensorView y) {
  if (parameters.bias && gemm_takes_bias(parameters.bias->value, y)) {
    return gemm(ctx, x, parameters.weight.value, y,
                {.b = Transpose::kYes, .bias = parameters.bias->value});
  }
  matrix_forward(ctx, parameters.weight, x, y);
  if (parameters.bias) add_bias(ctx, parameters.bias->value, y);
}

void linear_forward_features(ExecContext& ctx, const LinearParameters& parameters,
                             ConstTensorView x, TensorView y, const RowRange& features) {
  const ConstTensorView weight = parameters.weight.value;
  const TensorView columns = y.columns(features.begin, features.count());
  gemm(ctx, x, weight.rows(features.begin, features.count()), columns, {.b = Transpose::kYes});
  if (!parameters.bias) return;
  const ConstTensorView bias = parameters.bias->value;
  add_bias(ctx, bias.rows(features.begin, features.count()), columns);
}

void linear_input_gradient(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView dy,
                           TensorView dx) {
  gemm(ctx, dy, parameters.weight.value, dx);
}

void linear_weight_gradients(ExecContext& ctx, LinearParameters& parameters, ConstTensorView x,
                             ConstTensorView dy) {
  if (parameters.bias && parameters.bias->trainable) {
    bias_backward(ctx, dy, parameters.bias->grad);
  }
  matrix_weight_gradient(ctx, parameters.weight, x, dy);
}

void linear_backward(ExecContext& ctx, LinearParameters& parameters, ConstTensorView x,
                     ConstTensorView dy, std::optional<TensorView> dx) {
  linear_weight_gradients(ctx, parameters, x, dy);
  if (dx) linear_input_gradient(ctx, parameters, dy, *dx);  // last, because dx may be x
}

}  // namespace coppice
