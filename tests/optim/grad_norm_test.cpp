// The global norm by hand, against plain sums, and its indifference to threads.
#include "optim/grad_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/support.hpp"

namespace coppice {
namespace {

using test::TestContext;

Parameter with_gradient(Tensor grad) {
  Parameter parameter;
  parameter.name = "p";
  parameter.grad = std::move(grad);
  parameter.parts.push_back({.name = "p", .shard = Shard::whole(parameter.grad.shape())});
  return parameter;
}

class GradNorm : public test::OptimTest {};
INSTANTIATE_TEST_SUITE_P(Backends, GradNorm, testing::ValuesIn(test::optim_backends()),
                         test::optim_backend_name);

// 1 + 4 + 4 + 16 + 144 = 169.  Mutation seen red: the root of the sum of norms.
TEST_P(GradNorm, IsTheRootOfAllSquares) {
  TestContext test(device());
  Parameter a = with_gradient(test.from(dtype(), {3}, {1, -2, 2}));
  Parameter b = with_gradient(test.from(dtype(), {1, 2}, {4, 12}));
  const std::vector<Parameter*> parameters{&a, &b};
  EXPECT_EQ(global_grad_norm(test.ctx(), parameters), 13.0);
}

// Sizes around a block's and a lane group's edge.  Mutation seen red: the tail of a block left out.
TEST_P(GradNorm, CountsEveryElementOfEveryBlock) {
  TestContext test(device());
  for (std::int64_t size : {0, 1, 7, 8, 9, 65535, 65536, 65537, 200003}) {
    Parameter a = with_gradient(test.random(dtype(), {size}, "a"));
    Parameter b = with_gradient(test.random(dtype(), {13, 5}, "b"));
    const std::vector<Parameter*> parameters{&a, &b};
    long double sum = 0;
    for (const Parameter* p : parameters) {
      for (double x : test::values_of(p->grad)) sum += static_cast<long double>(x) * x;
    }
    const auto expected = static_cast<double>(std::sqrt(sum));
    EXPECT_NEAR(global_grad_norm(test.ctx(), parameters), expected, 1e-12 * expected) << size;
  }
}

// Values whose squares leave f32's range.  Mutation seen red: squares in f32.
TEST_P(GradNorm, SquaresInDouble) {
  TestContext test(device());
  Parameter a = with_gradient(test.from(dtype(), {2}, {3e30, 4e30}));
  const std::vector<Parameter*> parameters{&a};
  EXPECT_NEAR(global_grad_norm(test.ctx(), parameters), 5e30, 1e24);
}

TEST_P(GradNorm, IsTheSameNumberForAnyThreadCount) {
  std::vector<double> norms;
  for (int threads : {1, 2, 3, 8}) {
    TestContext test(device(), threads);
    Parameter a = with_gradient(test.random(dtype(), {300007}, "a"));
    Parameter b = with_gradient(test.random(dtype(), {70001}, "b"));
    const std::vector<Parameter*> parameters{&a, &b};
    norms.push_back(global_grad_norm(test.ctx(), parameters));
  }
  for (double norm : norms) EXPECT_EQ(norm, norms.front());
}

TEST_P(GradNorm, ShowsASingleValueThatIsNotFinite) {
  TestContext test(device());
  for (double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Parameter a = with_gradient(test.from(dtype(), {3}, {1, bad, 1}));
    const std::vector<Parameter*> parameters{&a};
    EXPECT_FALSE(std::isfinite(global_grad_norm(test.ctx(), parameters)));
  }
}

TEST_P(GradNorm, LeavesOutFrozenParameters) {
  TestContext test(device());
  Parameter a = with_gradient(test.from(dtype(), {1}, {3}));
  Parameter frozen;
  frozen.trainable = false;
  const std::vector<Parameter*> parameters{&a, &frozen};
  EXPECT_EQ(global_grad_norm(test.ctx(), parameters), 3.0);
}

TEST(ClipScale, BringsALargeNormDownAndLeavesOthers) {
  EXPECT_EQ(clip_scale(4.0, 2.0), 2.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_scale(2.0, 2.0), 1.0);
  EXPECT_EQ(clip_scale(0.0, 2.0), 1.0);
}

TEST(ClipScale, IsOffAtZero) { EXPECT_EQ(clip_scale(1e9, 0.0), 1.0); }

}  // namespace
}  // namespace coppice
