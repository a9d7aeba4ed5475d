// Arithmetic of linears. The matrix work is core's gemm.
#include "layers/linear.hpp"

#include "core/gemm.hpp"
#include "layers/rows.hpp"

namespace coppice {
namespace {

void matrix_weight_gradient(ExecContext& ctx, Parameter& weight, ConstTensorView x,
                            ConstTensorView dy) {
  if (!weight.trainable) return;
  // dW += dy^T x
  gemm(ctx, dy, x, weight.grad, {.a = Transpose::kYes, .beta = weight.grad_is_unset ? 0.0 : 1.0});
  weight.grad_is_unset = false;
}

}  // namespace

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
  matrix_weight_gradient(ctx, weight, x, dy);
  if (dx) gemm(ctx, dy, weight.value, *dx);  // last, because dx may be x
}

void linear_forward(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView x,
                    TensorView y) {
  linear_forward_features(ctx, parameters, x, y, {0, parameters.weight.rows()});
}

void linear_forward_features(ExecContext& ctx, const LinearParameters& parameters,
                             ConstTensorView x, TensorView y, const RowRange& features) {
  const auto of_features = [&](ConstTensorView all) {
    return all.rows(features.begin, features.count());
  };
  GemmOptions options{.b = Transpose::kYes};
  const TensorView columns = y.columns(features.begin, features.count());
  if (!parameters.bias) return gemm(ctx, x, of_features(parameters.weight.value), columns, options);
  // The product adds the bias where it can; else y is read and written once more.
  const ConstTensorView bias = of_features(parameters.bias->value);
  const bool in_product = gemm_takes_bias(bias, columns);
  if (in_product) options.bias = bias;
  gemm(ctx, x, of_features(parameters.weight.value), columns, options);
  if (!in_product) add_bias(ctx, bias, columns);
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
