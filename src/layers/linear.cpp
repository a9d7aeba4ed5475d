// Parameters and arithmetic of linears. The matrix work is core's gemm.
#include "layers/linear.hpp"

#include "core/gemm.hpp"
#include "layers/rows.hpp"

namespace coppice {
namespace {

Parameter stacked(const ParameterStorage& storage, const LinearConfig& config, const char* suffix) {
  const bool is_bias = std::string_view(suffix) == ".bias";
  std::vector<PartShard> parts;
  for (const auto& part : config.parts) {
    parts.push_back({part.name + suffix,
                     Shard::whole(is_bias ? Shape({part.out_features})
                                          : Shape({part.out_features, config.in_features}))});
  }
  return make_parameter(storage, config.name + suffix, parts,
                        is_bias ? WeightDecay::kNo : WeightDecay::kYes);
}

}  // namespace

std::int64_t LinearConfig::out_features() const {
  std::int64_t sum = 0;
  for (const auto& part : parts) sum += part.out_features;
  return sum;
}

LinearParameters::LinearParameters(const ParameterStorage& storage, const LinearConfig& config)
    : weight(stacked(storage, config, ".weight")) {
  if (config.bias) bias = stacked(storage, config, ".bias");
}

void LinearParameters::collect(std::vector<Parameter*>& parameters) {
  parameters.push_back(&weight);
  if (bias) parameters.push_back(&*bias);
}

void linear_forward(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView x,
                    TensorView y) {
  gemm(ctx, x, parameters.weight.value, y, {.b = Transpose::kYes});
  if (parameters.bias) add_bias(ctx, parameters.bias->value, y);
}

void linear_backward(ExecContext& ctx, LinearParameters& parameters, ConstTensorView x,
                     ConstTensorView dy, std::optional<TensorView> dx) {
  if (parameters.bias && parameters.bias->trainable) {
    bias_backward(ctx, dy, parameters.bias->grad);
  }
  Parameter& weight = parameters.weight;
  if (weight.trainable) {
    gemm(ctx, dy, x, weight.grad, {.a = Transpose::kYes, .beta = 1.0});  // dW += dy^T x
  }
  if (dx) gemm(ctx, dy, weight.value, *dx);  // last, because dx may be x
}

}  // namespace coppice
