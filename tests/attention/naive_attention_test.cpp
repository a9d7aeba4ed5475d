// The reference itself, held against what it claims to be the derivative of.
#include "reference/naive_attention.hpp"

#include <gtest/gtest.h>

#include "core/rng.hpp"

namespace coppice::reference {
namespace {

std::vector<double> random(std::int64_t n, std::string_view name) {
  const RandomStream stream(1, name);
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(stream.normal(static_cast<std::uint64_t>(i)));
  return values;
}

TEST(NaiveAttention, HasTheGradientsThatFiniteDifferencesHave) {
  const std::vector<TreeSegment> tree{{3, -1}, {2, 0}, {3, 0}, {1, 2}};
  constexpr std::int64_t kRows = 9, kHeads = 4, kKvHeads = 2, kDim = 3;
  AttentionProblem problem{kRows,
                           kRows,
                           kHeads,
                           kKvHeads,
                           kDim,
                           0.7,
                           random(kRows * kHeads * kDim, "q"),
                           random(kRows * kKvHeads * kDim, "k"),
                           random(kRows * kKvHeads * kDim, "v"),
                           visibility(tree)};
  const auto d_out = random(kRows * kHeads * kDim, "d_out");
  const auto value = [&] {
    const auto out = attention(problem).out;
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += d_out[i] * out[i];
    return sum;
  };
  const auto gradients = attention_gradients(problem, d_out);
  const auto expect_derivative = [&](std::vector<double>& x, const std::vector<double>& dx) {
    constexpr double kStep = 1e-5;  // the cube root of f64's epsilon: error about 1e-10
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double at = x[i];
      x[i] = at + kStep;
      const double above = value();
      x[i] = at - kStep;
      const double below = value();
      x[i] = at;
      EXPECT_NEAR((above - below) / (2 * kStep), dx[i], 1e-8);
    }
  };
  expect_derivative(problem.q, gradients.dq);
  expect_derivative(problem.k, gradients.dk);
  expect_derivative(problem.v, gradients.dv);
}

}  // namespace
}  // namespace coppice::reference
