// The head on a CUDA device, where only the gradient of the logits is stored in bf16: at most twice
// the error of computing it exactly, rounding it and multiplying exactly; the same bits under every
// schedule.
//
// Seen red: the gradient's barrier taken out; the gradient written a pack too far from the second
// run of columns on; sums of one warp only.
#include <gtest/gtest.h>

#include "layers/cuda_support.hpp"
#include "layers/head_support.hpp"

namespace coppice {
namespace {

using test::mixed_edges;
using test::numbers;
using test::relative_difference;
using test::rounded;
using test::tolerance;
using test::values_of;

TEST(HeadCuda, IsAsExactAsTheStorageOfItsGradient) {
  constexpr std::int64_t kRows = 7, kWidth = 24;
  test::TestContext test(test::kCudaDevice);
  for (const std::int64_t vocabulary : {7, 151, 2048, 2055, 4104}) {
    SCOPED_TRACE(vocabulary);
    const auto edges = mixed_edges(kRows, vocabulary);
    const auto list = test::reference_edges(edges);
    const auto c = numbers("c", edges.edge_count()), e = numbers("e", edges.edge_count());
    const Tensor x = test.random(DType::kBF16, {kRows, kWidth}, "x");
    const Tensor weight = test.random(DType::kBF16, {vocabulary, kWidth}, "weight", 0.3);
    const auto xs = values_of(x), weights = values_of(weight);
    const auto logits = reference::linear(xs, weights, {}, kWidth);
    const auto expected = reference::logprobs(logits, vocabulary, list, 1.3);
    const auto dz = reference::logprob_gradient(logits, vocabulary, list, 1.3, c, e);
    auto exact = reference::linear_gradients(xs, weights, dz, kWidth);
    auto naive = reference::linear_gradients(xs, weights, rounded(dz, DType::kBF16), kWidth);
    for (double& value : exact.dw) value += 0.5;
    for (double& value : naive.dw) value += 0.5;

    const auto result = test::run_head(test, x, weight, edges, 1.3, 3, c, e);
    const double bound = 8 * tolerance(DType::kF32, kWidth);
    for (std::size_t i = 0; i < list.size(); ++i) {
      EXPECT_NEAR(result.logprobs[i], expected.logprobs[i], bound) << i;
      EXPECT_NEAR(result.entropies[i], expected.entropies[i], bound) << i;
    }
    EXPECT_LE(relative_difference(values_of(result.dx), exact.dx),
              2 * relative_difference(rounded(naive.dx, DType::kBF16), exact.dx));
    EXPECT_LE(relative_difference(values_of(result.dweight), exact.dw),
              2 * relative_difference(naive.dw, exact.dw) + tolerance(DType::kF32, kRows));
  }
}

TEST(HeadCuda, GivesTheSameBitsUnderEverySchedule) {
  test::TestContext test(test::kCudaDevice);
  const Tensor x = test.random(DType::kBF16, {5, 16}, "x");
  const Tensor weight = test.random(DType::kBF16, {2503, 16}, "weight");
  const auto edges = mixed_edges(5, 2503);
  const auto c = numbers("c", edges.edge_count()), e = numbers("e", edges.edge_count());
  EXPECT_TRUE(test::same_bits_under_every_schedule([&] {
    auto result = test::run_head(test, x, weight, edges, 0.9, 2, c, e);
    std::vector<Tensor> results;
    results.push_back(std::move(result.dx));
    results.push_back(std::move(result.dweight));
    const auto count = std::ssize(result.logprobs);
    results.push_back(test.from(DType::kF64, {count}, result.logprobs));
    results.push_back(test.from(DType::kF64, {count}, result.entropies));
    return results;
  }));
}

}  // namespace
}  // namespace coppice
