#pragma once
// What column- and row-parallel linears have in common: their configuration, their parameters and
// the arithmetic of one rank. Which rows or columns of the matrix a rank holds, and the collectives
// that follow from it, belong to the two layers.
#include <optional>
#include <string>
#include <vector>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"
#include "parallel/parameter.hpp"
#include "parallel/row_share.hpp"

namespace coppice {

struct LinearPart {
  /// As many pieces as there are tensor-parallel ranks.
  static constexpr std::int64_t kOneEach = 0;

  std::string name;  ///< Hugging Face name without ".weight", "model.layers.0.self_attn.q_proj"
  std::int64_t out_features;
  /// Column-parallel: into how many equal pieces the features are cut. Fewer than there are ranks:
  /// neighbours hold the same piece (key-value heads).
  std::int64_t pieces = kOneEach;
};

/// One matrix multiplication, which may hold several logical linears of the same input.
struct LinearConfig {
  std::string name;  ///< of the parameter, "model.layers.0.self_attn.qkv_proj"
  std::int64_t in_features;
  std::vector<LinearPart> parts;  ///< stacked by rows of the weight in this order
  bool bias = false;
};

/// A rank's part of the weight and of the optional bias.
struct LinearParameters {
  Parameter weight;               // [out, in]
  std::optional<Parameter> bias;  // [out]
  void collect(std::vector<Parameter*>& parameters);
};

/// Of the given rectangles; biases are left out where config.bias is false.
LinearParameters make_linear_parameters(const ParameterStorage& storage, const LinearConfig& config,
                                        const std::vector<PartShard>& weights,
                                        const std::vector<PartShard>& biases);

/// y = x weight^T + bias
///
/// Shapes    x [T, in]   y [T, out], rows may be apart
/// Effects   overwrites y
/// Repeats   bitwise, for the same thread count and kind of CPU
/// Oracle    tests/layers/linear_test.cpp
void linear_forward(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView x,
                    TensorView y);

/// The same for the output features in `features` only; of y it overwrites those columns.
void linear_forward_features(ExecContext& ctx, const LinearParameters& parameters,
                             ConstTensorView x, TensorView y, const RowRange& features);

/// dx = dy weight;  weight.grad += dy^T x;  bias.grad += sum of dy's rows
///
/// Effects   overwrites dx, where one is wanted, which may be x itself (x is read before); adds to
///           the gradients of trainable parameters only
void linear_backward(ExecContext& ctx, LinearParameters& parameters, ConstTensorView x,
                     ConstTensorView dy, std::optional<TensorView> dx);

/// The two halves of linear_backward, for who has work between them: dx = dy weight, and the rest.
void linear_input_gradient(ExecContext& ctx, const LinearParameters& parameters, ConstTensorView dy,
                           TensorView dx);
void linear_weight_gradients(ExecContext& ctx, LinearParameters& parameters, ConstTensorView x,
                             ConstTensorView dy);

// The same without the bias.

void matrix_forward(ExecContext& ctx, const Parameter& weight, ConstTensorView x, TensorView y);
void matrix_backward(ExecContext& ctx, Parameter& weight, ConstTensorView x, ConstTensorView dy,
                     std::optional<TensorView> dx);

}  // namespace coppice
