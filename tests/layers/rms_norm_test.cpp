// The norm against hand-worked rows, the double reference, and itself under other thread counts.
//
// Seen red: mean taken over width + 1; the factor rstd left out of the mean in backward; dgamma
// summed over the first block only; residual_grad ignored.
#include "layers/rms_norm.hpp"

#include <gtest/gtest.h>

#include "layers/support.hpp"
#include "reference/finite_differences.hpp"
#include "reference/naive_layers.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_LAYER_TEST(RmsNormOp);

constexpr double kEpsilon = 1e-5;

double distance(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return std::sqrt(reference::dot(a, a));
}

// x = (3, 4): mean square 12.5, and with epsilon 12.5 the root is exactly 5, so rstd = 0.2.
// y = (3, 4) * 0.2 * (1, 2) = (0.6, 1.6). With dy = (1, 1): g = dy gamma = (1, 2), g.x = 11,
// dx = 0.2 g - 0.2^3 x 11 / 2 = (0.2 - 0.132, 0.4 - 0.176), dgamma = dy x 0.2 = (0.6, 0.8).
TEST_P(RmsNormOp, EqualsARowWorkedByHand) {
  const Tensor x = test_.from(dtype(), {1, 2}, {3, 4});
  const Tensor gamma = test_.from(dtype(), {2}, {1, 2});
  Tensor y = test_.zeros(dtype(), {1, 2}), rstd = test_.zeros(dtype(), {1});
  rms_norm_forward(ctx(), x, gamma, 12.5, y, rstd);
  EXPECT_LE(relative_difference(values_of(rstd), {0.2}), tolerance(dtype()));
  EXPECT_LE(relative_difference(values_of(y), {0.6, 1.6}), tolerance(dtype()));

  const Tensor dy = test_.filled(dtype(), {1, 2}, 1.0);
  Tensor dx = test_.zeros(dtype(), {1, 2}), dgamma = test_.from(dtype(), {2}, {10, 20});
  rms_norm_backward(ctx(), x, gamma, rstd, dy, std::nullopt, dx, dgamma.view());
  EXPECT_LE(relative_difference(values_of(dx), {0.068, 0.224}), tolerance(dtype()));
  EXPECT_LE(relative_difference(values_of(dgamma), {10.6, 20.8}), tolerance(dtype()));
}

TEST(RmsNormReference, GradientsAgreeWithFiniteDifferences) {
  test::TestContext test;
  const auto x = values_of(test.random(DType::kF64, {3, 5}, "x"));
  const auto gamma = values_of(test.random(DType::kF64, {5}, "gamma"));
  const auto dy = values_of(test.random(DType::kF64, {3, 5}, "dy"));
  const auto gradients = reference::rms_norm_gradients(x, gamma, kEpsilon, dy);
  const auto dx = reference::finite_differences(
      [&](const auto& at) {
        return reference::dot(dy, reference::rms_norm(at, gamma, kEpsilon).y);
      },
      x);
  const auto dgamma = reference::finite_differences(
      [&](const auto& at) { return reference::dot(dy, reference::rms_norm(x, at, kEpsilon).y); },
      gamma);
  EXPECT_LE(relative_difference(gradients.dx, dx), reference::kFiniteDifferenceTolerance);
  EXPECT_LE(relative_difference(gradients.dgamma, dgamma), reference::kFiniteDifferenceTolerance);
}

TEST_P(RmsNormOp, EqualsTheReferenceForEveryShape) {
  for (const std::int64_t tokens : {0, 1, 15, 16, 17, 67}) {
    for (const std::int64_t width : {1, 3, 8, 16, 31, 64, 97}) {
      const Tensor x = test_.random(dtype(), {tokens, width}, "x");
      const Tensor gamma = test_.random(dtype(), {width}, "gamma");
      const Tensor dy = test_.random(dtype(), {tokens, width}, "dy");
      Tensor y = test_.zeros(dtype(), {tokens, width}), rstd = test_.zeros(dtype(), {tokens});
      Tensor dx = test_.zeros(dtype(), {tokens, width}), dgamma = test_.zeros(dtype(), {width});
      rms_norm_forward(ctx(), x, gamma, kEpsilon, y, rstd);
      rms_norm_backward(ctx(), x, gamma, rstd, dy, std::nullopt, dx, dgamma.view());
      const auto norm = reference::rms_norm(values_of(x), values_of(gamma), kEpsilon);
      const auto gradients =
          reference::rms_norm_gradients(values_of(x), values_of(gamma), kEpsilon, values_of(dy));
      SCOPED_TRACE(fmt::format("{} x {}", tokens, width));
      EXPECT_LE(relative_difference(values_of(y), norm.y), tolerance(dtype(), width));
      EXPECT_LE(relative_difference(values_of(rstd), norm.rstd), tolerance(dtype(), width));
      // dx and dgamma may be small differences of large terms (always so for a vector of one, whose
      // norm does not depend on x), and rounding is of the size of the terms.
      double dx_terms = 0, dgamma_terms = 0;
      const auto xs = values_of(x), dys = values_of(dy), gammas = values_of(gamma);
      for (std::size_t i = 0; i < xs.size(); ++i) {
        const double r = norm.rstd[i / gammas.size()];
        dx_terms += std::pow(dys[i] * gammas[i % gammas.size()] * r, 2);
        dgamma_terms += std::pow(dys[i] * xs[i] * r, 2);
      }
      EXPECT_LE(distance(values_of(dx), gradients.dx),
                tolerance(dtype(), width) * std::sqrt(dx_terms));
      EXPECT_LE(distance(values_of(dgamma), gradients.dgamma),
                tolerance(dtype(), tokens) * std::sqrt(dgamma_terms));
    }
  }
}

TEST_P(RmsNormOp, NormsHeadsThatAreColumnsOfAWiderMatrix) {
  constexpr std::int64_t kTokens = 19, kHeads = 3, kWidth = 10, kColumns = 50;
  Tensor matrix = test_.random(dtype(), {kTokens, kColumns}, "matrix");
  Tensor grads = test_.random(dtype(), {kTokens, kColumns}, "grads");
  const Tensor gamma = test_.random(dtype(), {kWidth}, "gamma");
  const auto before = values_of(matrix), grads_before = values_of(grads);
  const auto heads = [&](TensorView of) {
    return of.columns(7, kHeads * kWidth).reshape({kTokens, kHeads, kWidth});
  };
  const auto x = values_of(heads(matrix)), dy = values_of(heads(grads));
  Tensor y = test_.zeros(dtype(), {kTokens, kHeads, kWidth});
  Tensor rstd = test_.zeros(dtype(), {kTokens, kHeads}), dgamma = test_.zeros(dtype(), {kWidth});
  rms_norm_forward(ctx(), heads(matrix), gamma, kEpsilon, y, rstd);
  rms_norm_backward(ctx(), heads(matrix), gamma, rstd, heads(grads), std::nullopt, heads(grads),
                    dgamma.view());

  const auto norm = reference::rms_norm(x, values_of(gamma), kEpsilon);
  const auto gradients = reference::rms_norm_gradients(x, values_of(gamma), kEpsilon, dy);
  EXPECT_LE(relative_difference(values_of(y), norm.y), tolerance(dtype(), kWidth));
  EXPECT_LE(relative_difference(values_of(heads(grads)), gradients.dx), tolerance(dtype(), kWidth));
  EXPECT_LE(relative_difference(values_of(dgamma), gradients.dgamma),
            tolerance(dtype(), kTokens * kHeads));
  EXPECT_EQ(values_of(matrix), before);
  EXPECT_EQ(values_of(grads.view().columns(0, 7)),
            reference::columns(grads_before, kColumns, 0, 7));
  EXPECT_EQ(values_of(grads.view().columns(37, 13)),
            reference::columns(grads_before, kColumns, 37, 13));
}

TEST_P(RmsNormOp, FusesTheResidualAdditionsAroundIt) {
  constexpr std::int64_t kTokens = 18, kWidth = 21;
  const Shape shape{kTokens, kWidth};
  const Tensor x = test_.random(dtype(), shape, "x");
  Tensor delta = test_.random(dtype(), shape, "delta");
  const Tensor gamma = test_.random(dtype(), {kWidth}, "gamma");
  const Tensor dy = test_.random(dtype(), shape, "dy");
  Tensor residual = test_.random(dtype(), shape, "residual");
  auto sum = values_of(x);
  const auto deltas = values_of(delta), residuals = values_of(residual);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += deltas[i];

  // Both in place, as a block uses them: sum over delta, dx over the residual's gradient.
  Tensor y = test_.zeros(dtype(), shape), rstd = test_.zeros(dtype(), {kTokens});
  Tensor dgamma = test_.zeros(dtype(), {kWidth});
  add_rms_norm_forward(ctx(), x, delta, gamma, kEpsilon, delta, y, rstd);
  rms_norm_backward(ctx(), delta, gamma, rstd, dy, residual, residual, dgamma.view());
  const auto norm = reference::rms_norm(sum, values_of(gamma), kEpsilon);
  auto dx = reference::rms_norm_gradients(sum, values_of(gamma), kEpsilon, values_of(dy)).dx;
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += residuals[i];
  EXPECT_LE(relative_difference(values_of(delta), sum), tolerance(dtype()));
  EXPECT_LE(relative_difference(values_of(y), norm.y), tolerance(dtype(), kWidth));
  EXPECT_LE(relative_difference(values_of(residual), dx), tolerance(dtype(), kWidth));
}

TEST_P(RmsNormOp, GivesTheSameBitsForAnyThreadCount) {
  const Tensor x = test_.random(dtype(), {333, 40}, "x"),
               dy = test_.random(dtype(), {333, 40}, "y");
  const Tensor gamma = test_.random(dtype(), {40}, "gamma");
  std::vector<Tensor> results;
  for (const int threads : {1, 2, 3}) {
    ctx().threads = threads;
    Tensor y = test_.zeros(dtype(), {333, 40}), rstd = test_.zeros(dtype(), {333});
    Tensor dx = test_.zeros(dtype(), {333, 40}), dgamma = test_.zeros(dtype(), {40});
    rms_norm_forward(ctx(), x, gamma, kEpsilon, y, rstd);
    rms_norm_backward(ctx(), x, gamma, rstd, dy, std::nullopt, dx, dgamma.view());
    for (Tensor* result : {&y, &rstd, &dx, &dgamma}) results.push_back(std::move(*result));
  }
  for (std::size_t i = 4; i < results.size(); ++i) {
    EXPECT_TRUE(bit_equal(results[i], results[i % 4])) << i;
  }
}

TEST_P(RmsNormOp, KeepsGarbageOfARowInThatRow) {
  Tensor x = test_.random(dtype(), {5, 20}, "x");
  const Tensor gamma = test_.random(dtype(), {20}, "gamma");
  Tensor clean = test_.zeros(dtype(), {5, 20}), dirty = test_.zeros(dtype(), {5, 20});
  Tensor rstd = test_.zeros(dtype(), {5});
  rms_norm_forward(ctx(), x, gamma, kEpsilon, clean, rstd);
  visit_float(dtype(), [&]<class T>(TypeTag<T>) {
    x.view().rows(2, 1).data<T>()[3] = std::numeric_limits<T>::quiet_NaN();
  });
  rms_norm_forward(ctx(), x, gamma, kEpsilon, dirty, rstd);
  EXPECT_TRUE(bit_equal(clean.view().rows(0, 2), dirty.view().rows(0, 2)));
  EXPECT_TRUE(bit_equal(clean.view().rows(3, 2), dirty.view().rows(3, 2)));
  for (const double value : values_of(dirty.view().rows(2, 1))) EXPECT_TRUE(std::isnan(value));
}

TEST_P(RmsNormOp, LeasesTheScratchItSays) {
  for (const std::int64_t tokens : {0, 1, 16, 17, 5000}) {
    test::TestContext fresh;
    const Tensor x = fresh.filled(dtype(), {tokens, 24}, 1.0);
    const Tensor gamma = fresh.filled(dtype(), {24}, 1.0),
                 rstd = fresh.filled(dtype(), {tokens}, 1.0);
    Tensor dx = fresh.zeros(dtype(), {tokens, 24}), dgamma = fresh.zeros(dtype(), {24});
    rms_norm_backward(fresh.ctx(), x, gamma, rstd, x, std::nullopt, dx, dgamma.view());
    EXPECT_EQ(fresh.scratch().high_water_bytes(), rms_norm_scratch_bytes(dtype(), tokens, 24));
  }
}

TEST_P(RmsNormOp, RefusesShapesThatDisagree) {
  Tensor x = test_.zeros(dtype(), {2, 4}), gamma = test_.zeros(dtype(), {5});
  Tensor rstd = test_.zeros(dtype(), {2});
  EXPECT_THROW(rms_norm_forward(ctx(), x, gamma, kEpsilon, x, rstd), ContractError);
  Tensor good = test_.zeros(dtype(), {4}), wrong = test_.zeros(dtype(), {3});
  EXPECT_THROW(rms_norm_forward(ctx(), x, good, kEpsilon, x, wrong), ContractError);
}

}  // namespace
}  // namespace coppice
