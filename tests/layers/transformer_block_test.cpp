// The block against the naive one and its finite differences, and its recomputation against itself.
//
// Seen red: residual of the second branch taken before attention; either norm's gradient without
// the residual's; k norm's gradient through q's weight; later dK added after the turn back;
// kSelective recomputing with the wrong norm.
#include "layers/transformer_block.hpp"

#include <gtest/gtest.h>

#include "layers/block_support.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::kShape;
using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_LAYER_TEST(Block);

constexpr std::string_view kPrefix = "model.layers.0.";

/// A block that has been run forward and backward.
struct BlockRun {
  BlockRun(test::TestContext& test, DType dtype, const test::Family& family,
           const test::SmallForest& forest, Recompute recompute, double poison_row = -1)
      : block(rank.context, {test.memory(), dtype}, test::block_config(family)),
        activations(test.memory(), "activations"),
        x(test.random(dtype, {forest.tokens(), kShape.hidden}, "x")),
        dy(test.random(dtype, {forest.tokens(), kShape.hidden}, "dy")),
        y(test.zeros(dtype, x.shape())),
        dx(test.zeros(dtype, x.shape())),
        later_dk(test.random(dtype, {forest.tokens(), kShape.kv_heads, kShape.head_dim}, "dk")),
        later_dv(test.random(dtype, later_dk.shape(), "dv")) {
    block.collect(parameters);
    test::fill(parameters, 0.5, 0.25);
    if (poison_row >= 0) {
      visit_float(dtype, [&]<class T>(TypeTag<T>) {
        x.view().data<T>()[static_cast<std::int64_t>(poison_row) * kShape.hidden] =
            std::numeric_limits<T>::quiet_NaN();
      });
    }
    auto acts = block.lease_activations(activations, forest.tokens(), recompute);
    block.forward(test.ctx(), x, forest.rows(), acts, y);
    forward_scratch = test.scratch().high_water_bytes();
    block.backward(test.ctx(), x, forest.rows(), std::move(acts), dy, dx,
                   KeyValueGrad{later_dk, later_dv});
  }

  test::OneRank rank;
  TransformerBlock block;
  Arena activations;
  Tensor x, dy, y, dx, later_dk, later_dv;
  std::vector<Parameter*> parameters;
  std::int64_t forward_scratch;
};

TEST_P(Block, EqualsTheReferenceForEveryFamily) {
  const test::SmallForest forest(test_.memory(), dtype());
  for (const auto& family : test::kFamilies) {
    SCOPED_TRACE(family.name);
    const BlockRun run(test_, dtype(), family, forest, Recompute::kNone);
    const auto expected = reference::transformer_block(
        kShape, test::logical(run.parameters, kPrefix), forest.reference_rows(), values_of(run.x));
    EXPECT_LE(relative_difference(values_of(run.y), expected.y),
              tolerance(dtype(), kShape.hidden * kShape.head_dim));
  }
}

// In f32 the gradients are compared with those of finite differences at the same (rounded) numbers.
TEST_P(Block, GradientsAgreeWithFiniteDifferencesOfTheReference) {
  const test::SmallForest forest(test_.memory(), dtype());
  const auto rows = forest.reference_rows();
  for (const auto& family : test::kFamilies) {
    const BlockRun run(test_, dtype(), family, forest, Recompute::kNone);
    auto weights = test::logical(run.parameters, kPrefix);
    const auto gradients = test::logical(run.parameters, kPrefix, true);
    const auto x = values_of(run.x), dy = values_of(run.dy);
    const auto dk = values_of(run.later_dk), dv = values_of(run.later_dv);
    const auto loss = [&](const reference::Numbers& at) {
      const auto out = reference::transformer_block(kShape, weights, rows, at);
      return reference::dot(dy, out.y) + reference::dot(dk, out.k) + reference::dot(dv, out.v);
    };
    const double bound = std::max(reference::kFiniteDifferenceTolerance,
                                  tolerance(dtype(), forest.tokens() * kShape.hidden));
    EXPECT_LE(relative_difference(values_of(run.dx), reference::finite_differences(loss, x)),
              bound);
    EXPECT_EQ(weights.size(), family.qkv_bias ? 12u : family.qk_norm ? 11u : 9u);
    for (auto& [name, values] : weights) {
      SCOPED_TRACE(fmt::format("{} of {}", name, family.name));
      const auto kept = values;
      auto expected = reference::finite_differences(
          [&](const reference::Numbers& at) {
            values = at;
            return loss(x);
          },
          kept);
      values = kept;
      for (double& value : expected) value += 0.25;  // what the gradients held before
      EXPECT_LE(relative_difference(gradients.at(name), expected), bound);
    }
  }
}

TEST_P(Block, GivesTheSameBitsUnderEveryRecomputation) {
  const test::SmallForest forest(test_.memory(), dtype());
  for (const auto& family : test::kFamilies) {
    const BlockRun none(test_, dtype(), family, forest, Recompute::kNone);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kBlock}) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", family.name, static_cast<int>(recompute)));
      const BlockRun again(test_, dtype(), family, forest, recompute);
      EXPECT_TRUE(bit_equal(none.y, again.y));
      EXPECT_TRUE(bit_equal(none.dx, again.dx));
      for (std::size_t i = 0; i < none.parameters.size(); ++i) {
        EXPECT_TRUE(bit_equal(none.parameters[i]->grad, again.parameters[i]->grad))
            << none.parameters[i]->name;
      }
    }
  }
}

TEST_P(Block, WritesItsInputGradientOverItsOutputGradient) {
  const test::SmallForest forest(test_.memory(), dtype());
  BlockRun apart(test_, dtype(), test::kFamilies[2], forest, Recompute::kNone);
  Tensor stream = test_.random(dtype(), apart.dy.shape(), "dy");
  auto acts = apart.block.lease_activations(apart.activations, forest.tokens(), Recompute::kNone);
  apart.block.forward(ctx(), apart.x, forest.rows(), acts, apart.y);
  apart.block.backward(ctx(), apart.x, forest.rows(), std::move(acts), stream, stream,
                       KeyValueGrad{apart.later_dk, apart.later_dv});
  EXPECT_TRUE(bit_equal(stream, apart.dx));
}

TEST_P(Block, LeasesTheMemoryItSays) {
  for (const auto& family : test::kFamilies) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", family.name, static_cast<int>(recompute)));
      test::TestContext fresh;
      const test::SmallForest forest(fresh.memory(), dtype());
      const BlockRun run(fresh, dtype(), family, forest, recompute);
      EXPECT_EQ(run.activations.high_water_bytes(),
                run.block.activation_bytes(forest.tokens(), recompute));
      const auto forward = run.block.forward_scratch_bytes(forest.plan(), recompute, 2);
      const auto backward = run.block.backward_scratch_bytes(forest.plan(), recompute, 2);
      EXPECT_EQ(run.forward_scratch, forward);
      EXPECT_EQ(fresh.scratch().high_water_bytes(), std::max(forward, backward));
    }
  }
}

TEST_P(Block, AllocatesNothingInTheSteadyState) {
  const test::SmallForest forest(test_.memory(), dtype());
  BlockRun run(test_, dtype(), test::kFamilies[2], forest, Recompute::kSelective);
  run.activations.reset();
  const auto before = test_.memory().current_bytes();
  test_.memory().reset_peak();
  auto acts = run.block.lease_activations(run.activations, forest.tokens(), Recompute::kSelective);
  run.block.forward(ctx(), run.x, forest.rows(), acts, run.y);
  run.block.backward(ctx(), run.x, forest.rows(), std::move(acts), run.dy, run.dx);
  EXPECT_EQ(test_.memory().peak_bytes(), before);
}

// Row 5 is the first token of response 0: its own rows (5 to 7) may be lost, nobody else's.
TEST_P(Block, KeepsGarbageOfAResponseInThatResponse) {
  const test::SmallForest forest(test_.memory(), dtype());
  const BlockRun clean(test_, dtype(), test::kFamilies[0], forest, Recompute::kNone);
  const BlockRun dirty(test_, dtype(), test::kFamilies[0], forest, Recompute::kNone, 5);
  EXPECT_TRUE(bit_equal(clean.y.view().rows(0, 5), dirty.y.view().rows(0, 5)));
  EXPECT_TRUE(bit_equal(clean.y.view().rows(8, forest.tokens() - 8),
                        dirty.y.view().rows(8, forest.tokens() - 8)));
  EXPECT_TRUE(std::isnan(values_of(dirty.y.view().rows(5, 1))[0]));
  // Other responses reach the prefix's gradient only; theirs stay clean.
  EXPECT_TRUE(bit_equal(clean.dx.view().rows(8, forest.tokens() - 8),
                        dirty.dx.view().rows(8, forest.tokens() - 8)));
}

TEST_P(Block, AcceptsNoRows) {
  test::OneRank rank;
  TransformerBlock block(rank.context, storage(), test::block_config(test::kFamilies[2]));
  std::vector<Parameter*> parameters;
  block.collect(parameters);
  test::fill(parameters, 0.5, 0.25);
  const PrefixForest forest;
  const AttentionPlan plan(forest);
  const RopeTable table(test_.memory(), dtype(), {}, kShape.head_dim, 1);
  const SharedRows nothing_shared;
  Arena arena(test_.memory(), "activations");
  Tensor x = test_.zeros(dtype(), {0, kShape.hidden});
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
    auto acts = block.lease_activations(arena, 0, recompute);
    block.forward(ctx(), x, {plan, {}, table, nothing_shared}, acts, x);
    block.backward(ctx(), x, {plan, {}, table, nothing_shared}, std::move(acts), x, x);
  }
  for (const Parameter* parameter : parameters) {
    for (const double value : values_of(parameter->grad)) EXPECT_EQ(value, 0.25);
  }
}

TEST_P(Block, CollectsItsParametersInTheOrderOfTheComputation) {
  test::OneRank rank;
  TransformerBlock block(rank.context, storage(), test::block_config({"all", true, true}));
  std::vector<Parameter*> parameters;
  block.collect(parameters);
  std::vector<std::string> names;
  for (const Parameter* parameter : parameters) {
    for (const auto& part : parameter->parts) names.push_back(part.name.substr(kPrefix.size()));
    EXPECT_EQ(parameter->weight_decay,
              parameter->value.shape().rank() == 2 ? WeightDecay::kYes : WeightDecay::kNo);
  }
  const std::vector<std::string> expected{"input_layernorm.weight",
                                          "self_attn.q_proj.weight",
                                          "self_attn.k_proj.weight",
                                          "self_attn.v_proj.weight",
                                          "self_attn.q_proj.bias",
                                          "self_attn.k_proj.bias",
                                          "self_attn.v_proj.bias",
                                          "self_attn.q_norm.weight",
                                          "self_attn.k_norm.weight",
                                          "self_attn.o_proj.weight",
                                          "post_attention_layernorm.weight",
                                          "mlp.gate_proj.weight",
                                          "mlp.up_proj.weight",
                                          "mlp.down_proj.weight"};
  EXPECT_EQ(names, expected);
}

}  // namespace
}  // namespace coppice
