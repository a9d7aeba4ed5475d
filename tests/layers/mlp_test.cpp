// The feed-forward network against the composition of naive ops.
//
// Seen red: gate and up swapped; the last matrix's gradient taken from gate instead of hidden.
#include "layers/mlp.hpp"

#include <gtest/gtest.h>

#include "layers/support.hpp"
#include "reference/naive_layers.hpp"

namespace coppice {
namespace {

using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_LAYER_TEST(MlpLayer);

TEST_P(MlpLayer, EqualsTheReferenceForwardAndBackward) {
  constexpr std::int64_t kTokens = 13, kHidden = 6, kWidth = 10;
  test::OneRank rank;
  Mlp mlp(rank.context, storage(), "mlp", kHidden, kWidth);
  std::vector<Parameter*> parameters;
  mlp.collect(parameters);
  test::fill(parameters, 0.7);
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0]->parts[0].name, "mlp.gate_proj.weight");
  EXPECT_EQ(parameters[0]->parts[1].name, "mlp.up_proj.weight");
  const auto gate_up = values_of(parameters[0]->value), down = values_of(parameters[1]->value);

  Arena arena(test_.memory(), "activations");
  auto acts = mlp.lease_activations(arena, kTokens);
  EXPECT_EQ(arena.high_water_bytes(), mlp.activation_bytes(kTokens));
  const Tensor x = test_.random(dtype(), {kTokens, kHidden}, "x");
  const Tensor dy = test_.random(dtype(), {kTokens, kHidden}, "dy");
  Tensor y = test_.zeros(dtype(), x.shape()), dx = test_.zeros(dtype(), x.shape());
  mlp.forward(ctx(), x, acts, y);
  mlp.backward(ctx(), x, std::move(acts), dy, dx);

  const auto before = reference::linear(values_of(x), gate_up, {}, kHidden);
  const auto hidden = reference::swiglu(before, kWidth);
  const auto last = reference::linear_gradients(hidden, down, values_of(dy), kWidth);
  const auto d_before = reference::swiglu_gradient(before, kWidth, last.dx);
  const auto first = reference::linear_gradients(values_of(x), gate_up, d_before, kHidden);
  const double bound = tolerance(dtype(), kHidden * kWidth);
  EXPECT_LE(relative_difference(values_of(y), reference::linear(hidden, down, {}, kWidth)), bound);
  EXPECT_LE(relative_difference(values_of(dx), first.dx), bound);
  EXPECT_LE(relative_difference(values_of(parameters[0]->grad), first.dw), bound);
  EXPECT_LE(relative_difference(values_of(parameters[1]->grad), last.dw), bound);
}

}  // namespace
}  // namespace coppice
