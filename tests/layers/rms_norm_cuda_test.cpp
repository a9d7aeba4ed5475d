// The norm on a CUDA device in bf16, against the double reference on the same rounded inputs: its
// error may be twice that of the naive method, which computes exactly and rounds what it stores.
//
// Seen red: mean taken over width + 1; sums of squares of a vector's first pack only; the factor
// rstd left out of the mean in backward; residual_grad ignored; dgamma overwritten instead of added
// to; the teams' sums of dgamma without the last one.
#include <gtest/gtest.h>

#include "layers/rms_norm.hpp"
#include "layers/support.hpp"
#include "reference/naive_layers.hpp"
#include "support/device_schedule.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::relative_difference;
using test::rounded;
using test::tolerance;
using test::values_of;

constexpr double kEpsilon = 1e-5;

struct Case {
  std::int64_t tokens, heads, width;
};

// heads 0: [T, N]. Around the pack (8), the warp (32), a warp's packs (256), a block's (2048) and
// the width from which a block takes a vector (1024); odd widths are read one by one.
class RmsNormCuda : public testing::TestWithParam<Case> {
 protected:
  Shape shape() const {
    const auto [tokens, heads, width] = GetParam();
    return heads == 0 ? Shape({tokens, width}) : Shape({tokens, heads, width});
  }
  Shape rstd_shape() const {
    const auto [tokens, heads, width] = GetParam();
    return heads == 0 ? Shape({tokens}) : Shape({tokens, heads});
  }
  std::int64_t width() const { return GetParam().width; }
  std::int64_t vectors() const { return rstd_shape().numel(); }
  ExecContext& ctx() { return test_.ctx(); }
  Tensor random(const char* name) { return test_.random(DType::kBF16, shape(), name); }
  Tensor gamma() { return test_.random(DType::kBF16, {width()}, "gamma"); }

  // Distance of `tensor` from `exact`, in the distance of the naive method. `scale` is the size of
  // what is added up, in f32, where terms cancel (a vector of width 1 has almost no gradient).
  static double errors_of_naive(ConstTensorView tensor, const std::vector<double>& exact,
                                double scale = 0) {
    const double naive = distance(rounded(exact, tensor.dtype()), exact);
    const double off = distance(values_of(tensor), exact);
    return off == 0 ? 0 : off / (naive + tolerance(DType::kF32, tensor.shape().back()) * scale);
  }
  static double distance(std::vector<double> a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    return std::sqrt(reference::dot(a, a));
  }

  test::TestContext test_{test::kCudaDevice};
};

TEST_P(RmsNormCuda, EqualsTheReference) {
  const Tensor x = random("x"), weight = gamma();
  Tensor y = test_.filled(DType::kBF16, shape(), -1), rstd = test_.zeros(DType::kF32, rstd_shape());
  rms_norm_forward(ctx(), x, weight, kEpsilon, y, rstd);
  const auto expected = reference::rms_norm(values_of(x), values_of(weight), kEpsilon);
  EXPECT_LE(errors_of_naive(y, expected.y), 2);
  EXPECT_LE(relative_difference(values_of(rstd), expected.rstd), tolerance(DType::kF32, width()));
}

TEST_P(RmsNormCuda, AddsTheResidualFirst) {
  Tensor x = random("x");
  const Tensor delta = random("delta"), weight = gamma();
  auto sum = values_of(x);
  const auto deltas = values_of(delta);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += deltas[i];
  Tensor y = test_.zeros(DType::kBF16, shape()), rstd = test_.zeros(DType::kF32, rstd_shape());
  if (GetParam().heads != 0) return;  // only whole rows have a residual stream
  add_rms_norm_forward(ctx(), x, delta, weight, kEpsilon, x, y, rstd);  // in place, as a block does
  EXPECT_EQ(values_of(x), rounded(sum, DType::kBF16));
  const auto expected = reference::rms_norm(sum, values_of(weight), kEpsilon);
  EXPECT_LE(errors_of_naive(y, expected.y), 2);
}

TEST_P(RmsNormCuda, BackwardEqualsTheReference) {
  const Tensor x = random("x"), weight = gamma(), dy = random("dy");
  Tensor residual = random("residual");
  Tensor y = test_.zeros(DType::kBF16, shape()), rstd = test_.zeros(DType::kF32, rstd_shape());
  rms_norm_forward(ctx(), x, weight, kEpsilon, y, rstd);
  Tensor dgamma = test_.random(DType::kF32, {width()}, "dgamma");
  auto expected =
      reference::rms_norm_gradients(values_of(x), values_of(weight), kEpsilon, values_of(dy));
  const auto before = values_of(dgamma), residuals = values_of(residual);
  for (std::size_t i = 0; i < before.size(); ++i) expected.dgamma[i] += before[i];
  rms_norm_backward(ctx(), x, weight, rstd, dy, std::nullopt, y, dgamma.view());
  // dx = rstd (g - ...) with g = dy gamma.
  const auto rstds = values_of(rstd), weights = values_of(weight), dys = values_of(dy);
  double scale = 0;
  for (std::size_t i = 0; i < dys.size(); ++i) {
    const auto column = i % static_cast<std::size_t>(width());
    const double term = dys[i] * weights[column] * rstds[i / static_cast<std::size_t>(width())];
    scale += term * term;
  }
  scale = std::sqrt(scale);
  EXPECT_LE(errors_of_naive(y, expected.dx, scale), 2);
  EXPECT_LE(relative_difference(values_of(dgamma), expected.dgamma),
            tolerance(DType::kF32, vectors() + width()));

  for (std::size_t i = 0; i < residuals.size(); ++i) expected.dx[i] += residuals[i];
  rms_norm_backward(ctx(), x, weight, rstd, dy, residual, residual, std::nullopt);  // in place
  EXPECT_LE(errors_of_naive(residual, expected.dx, scale), 2);
}

TEST_P(RmsNormCuda, GivesTheSameBitsUnderEverySchedule) {
  const Tensor x = random("x"), weight = gamma(), dy = random("dy");
  std::vector<Tensor> results;
  for (int run = 0; run < 4; ++run) {
    test::set_device_schedule(run);
    Tensor y = test_.zeros(DType::kBF16, shape()), rstd = test_.zeros(DType::kF32, rstd_shape());
    Tensor dx = test_.zeros(DType::kBF16, shape()), dgamma = test_.zeros(DType::kF32, {width()});
    rms_norm_forward(ctx(), x, weight, kEpsilon, y, rstd);
    rms_norm_backward(ctx(), x, weight, rstd, dy, std::nullopt, dx, dgamma.view());
    for (Tensor* result : {&y, &rstd, &dx, &dgamma}) results.push_back(std::move(*result));
  }
  test::set_device_schedule(0);
  for (std::size_t i = 4; i < results.size(); ++i) {
    EXPECT_TRUE(bit_equal(results[i], results[i % 4])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormCuda,
                         testing::Values(Case{1, 0, 1}, Case{3, 0, 7}, Case{9, 0, 8},
                                         Case{5, 0, 33}, Case{17, 0, 264}, Case{4, 0, 1024},
                                         Case{4, 0, 1032}, Case{3, 0, 1031}, Case{10, 0, 2056},
                                         Case{300, 0, 16}, Case{6, 3, 64}, Case{5, 2, 96},
                                         Case{0, 0, 16}),
                         [](const auto& one) {
                           return std::to_string(one.param.tokens) + "x" +
                                  std::to_string(one.param.heads) + "x" +
                                  std::to_string(one.param.width);
                         });

// The q columns of a fused q, k, v matrix, whose rows are 16 bytes apart only for some widths.
TEST(RmsNormCudaViews, ReadsColumnsOfAWiderMatrix) {
  test::TestContext test(test::kCudaDevice);
  for (const std::int64_t total : {96, 90}) {
    Tensor fused = test.random(DType::kBF16, {5, total}, "fused");
    const Tensor gamma = test.random(DType::kBF16, {32}, "gamma");
    TensorView x = fused.view().columns(0, 64).reshape({5, 2, 32});
    const auto others = values_of(fused.view().columns(64, total - 64));
    const auto expected = reference::rms_norm(values_of(x), values_of(gamma), kEpsilon);
    Tensor rstd = test.zeros(DType::kF32, {5, 2});
    rms_norm_forward(test.ctx(), x, gamma, kEpsilon, x, rstd);
    EXPECT_LE(relative_difference(values_of(x), expected.y),
              2 * relative_difference(rounded(expected.y, DType::kBF16), expected.y));
    EXPECT_EQ(values_of(fused.view().columns(64, total - 64)), others);
  }
}

TEST(RmsNormCudaViews, LeasesTheScratchItSays) {
  for (const std::int64_t tokens : {1, 8, 9, 2049}) {
    test::TestContext test(test::kCudaDevice);
    const Tensor x = test.filled(DType::kBF16, {tokens, 8}, 1.0);
    const Tensor gamma = test.filled(DType::kBF16, {8}, 1.0),
                 rstd = test.filled(DType::kF32, {tokens}, 1.0);
    Tensor dx = test.zeros(DType::kBF16, {tokens, 8}), dgamma = test.zeros(DType::kF32, {8});
    rms_norm_backward(test.ctx(), x, gamma, rstd, x, std::nullopt, dx, dgamma.view());
    EXPECT_EQ(test.scratch().high_water_bytes(), rms_norm_scratch_bytes(DType::kBF16, tokens, 8));
  }
}

}  // namespace
}  // namespace coppice
