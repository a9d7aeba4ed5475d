// Column- and row-parallel linears on one rank, fused parts, biases, and frozen parameters.
//
// Seen red: weight gradient overwritten (beta 0); bias added twice; dx from the transposed weight
// (square case).
#include "layers/linear.hpp"

#include <gtest/gtest.h>

#include "layers/column_parallel_linear.hpp"
#include "layers/row_parallel_linear.hpp"
#include "layers/support.hpp"
#include "reference/naive_layers.hpp"

namespace coppice {
namespace {

using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_LAYER_TEST(Linear);

template <class Layer>
void expect_equals_reference(test::TestContext& test, DType dtype, std::int64_t tokens,
                             std::int64_t in, std::int64_t out, bool bias) {
  SCOPED_TRACE(fmt::format("{} x {} -> {}, bias {}", tokens, in, out, bias));
  test::OneRank rank;
  Layer layer(
      rank.context, {test.memory(), dtype},
      {.name = "fused", .in_features = in, .parts = {{"a", 1}, {"b", out - 1}}, .bias = bias});
  std::vector<Parameter*> parameters;
  layer.collect(parameters);
  ASSERT_EQ(parameters.size(), bias ? 2u : 1u);
  test::fill(parameters, 1.0, 0.5);
  const auto w = values_of(parameters[0]->value);
  const auto b = bias ? values_of(parameters[1]->value) : std::vector<double>{};

  Tensor wide = test.random(dtype, {tokens, in + 3}, "x");
  const TensorView x = wide.view().columns(1, in);
  const auto x_values = values_of(x);
  const Tensor dy = test.random(dtype, {tokens, out}, "dy");
  Tensor y = test.zeros(dtype, {tokens, out});
  layer.forward(test.ctx(), x, y);
  layer.backward(test.ctx(), x, dy, x);  // dx in x's place, as a block uses it
  EXPECT_LE(relative_difference(values_of(y), reference::linear(x_values, w, b, in)),
            tolerance(dtype, in));
  auto expected = reference::linear_gradients(x_values, w, values_of(dy), in);
  for (double& value : expected.dw) value += 0.5;
  for (double& value : expected.dbias) value += 0.5;
  EXPECT_LE(relative_difference(values_of(x), expected.dx), tolerance(dtype, out));
  EXPECT_LE(relative_difference(values_of(parameters[0]->grad), expected.dw),
            tolerance(dtype, tokens));
  if (bias) {
    EXPECT_LE(relative_difference(values_of(parameters[1]->grad), expected.dbias),
              tolerance(dtype, tokens));
  }
}

TEST_P(Linear, EqualsTheReferenceWithAndWithoutBias) {
  for (const bool bias : {false, true}) {
    for (const std::int64_t tokens : {0, 1, 13, 40}) {
      expect_equals_reference<ColumnParallelLinear>(test_, dtype(), tokens, 7, 11, bias);
      expect_equals_reference<RowParallelLinear>(test_, dtype(), tokens, 9, 9, bias);
    }
  }
}

TEST_P(Linear, StacksItsPartsUnderTheirOwnNames) {
  test::OneRank rank;
  ColumnParallelLinear layer(rank.context, storage(),
                             {.name = "attn.qkv_proj",
                              .in_features = 3,
                              .parts = {{"attn.q_proj", 4}, {"attn.k_proj", 2}, {"attn.v_proj", 2}},
                              .bias = true});
  const Parameter& weight = layer.parameters().weight;
  EXPECT_EQ(weight.value.shape(), Shape({8, 3}));
  ASSERT_EQ(weight.parts.size(), 3u);
  EXPECT_EQ(weight.parts[1].name, "attn.k_proj.weight");
  EXPECT_EQ(weight.parts[1].row_begin, 4);
  EXPECT_EQ(weight.parts[2].row_begin, 6);
  EXPECT_EQ(weight.parts[2].shard, Shard::whole({2, 3}));
  EXPECT_EQ(weight.weight_decay, WeightDecay::kYes);
  const Parameter& bias = *layer.parameters().bias;
  EXPECT_EQ(bias.parts[2].name, "attn.v_proj.bias");
  EXPECT_EQ(bias.weight_decay, WeightDecay::kNo);
}

TEST_P(Linear, LeavesFrozenParametersAlone) {
  test::OneRank rank;
  ParameterStorage frozen = storage();
  frozen.gradients = WithGradients::kNo;
  RowParallelLinear layer(rank.context, frozen,
                          {.name = "down", .in_features = 4, .parts = {{"down", 3}}, .bias = true});
  std::vector<Parameter*> parameters;
  layer.collect(parameters);
  test::fill(parameters, 1.0);
  EXPECT_FALSE(parameters[0]->trainable);
  EXPECT_FALSE(parameters[0]->grad.has_value());
  const Tensor x = test_.random(dtype(), {5, 4}, "x"), dy = test_.random(dtype(), {5, 3}, "dy");
  Tensor dx = test_.zeros(dtype(), {5, 4});
  layer.backward(ctx(), x, dy, dx.view());
  EXPECT_GT(reference::dot(values_of(dx), values_of(dx)), 0.0);
}

}  // namespace
}  // namespace coppice
