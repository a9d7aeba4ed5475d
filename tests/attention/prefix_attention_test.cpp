// What prefix attention computes, against the double reference: forward, dq, dk and dv under random
// cotangents on every row. That rows cannot influence each other where they should not is in
// prefix_attention_isolation_test.cpp, key spaces are in prefix_attention_spaces_test.cpp.
#include "attention/prefix_attention.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>

#include "attention/support.hpp"

namespace coppice {
namespace {

using test::Heads;
using Tree = std::vector<reference::TreeSegment>;

class PrefixAttention : public testing::TestWithParam<DType> {
 protected:
  /// Computes the tree's attention on random numbers and compares all of it with the reference.
  void expect_equal(const Tree& tree, Heads heads, const std::string& what = "") {
    const auto forest = test::forest_of(tree);
    auto data = test::attention_data(test_, GetParam(), forest.rows(), forest.rows(), heads);
    test::run(test_.ctx(), AttentionPlan(forest), data);
    const auto d = test::differences(data, reference::visibility(tree));
    EXPECT_LE(d.largest(), test::tolerance(GetParam(), forest.rows() * heads.query / heads.kv))
        << what << ": out " << d.out << " lse " << d.lse << " dq " << d.dq << " dk " << d.dk
        << " dv " << d.dv;
  }

  test::TestContext test_;
};

INSTANTIATE_TEST_SUITE_P(Backends, PrefixAttention, testing::Values(DType::kF32, DType::kF64),
                         test::dtype_name);

// By hand, head_dim 1: row 0 sees itself; the two responses of one row each see it and themselves.
// With q = 0 all scores are 0: outputs are means of values, LSE is ln 1 and ln 2. With d_out = 1,
// delta = out, so dS of the pair (response, key) is (v - out) / 2, and dv counts probabilities.
TEST_P(PrefixAttention, EqualsNumbersWorkedByHand) {
  const DType dtype = GetParam();
  const Shape shape{3, 1, 1};
  test::AttentionData data{test_.zeros(dtype, shape),
                           test_.from(dtype, shape, {1, 2, 3}),
                           test_.from(dtype, shape, {10, 20, 40}),
                           test_.filled(dtype, shape, 1),
                           test_.zeros(dtype, shape),
                           test_.zeros(dtype, {1, 3}),
                           test_.zeros(dtype, shape),
                           test_.zeros(dtype, shape),
                           test_.zeros(dtype, shape),
                           1.0};
  test::run(test_.ctx(), AttentionPlan(test::group(1, {1, 1})), data);
  EXPECT_EQ(test::values_of(data.out), (std::vector<double>{10, 15, 25}));
  EXPECT_NEAR(test::values_of(data.softmax_lse)[2], std::log(2.0), 1e-6);
  // The prompt's key: 1 from itself, 1/2 from each response.
  EXPECT_EQ(test::values_of(data.dv), (std::vector<double>{2, 0.5, 0.5}));
  // dq of response 1: (10 - 15)/2 * 1 + (20 - 15)/2 * 2 = 2.5; of response 2: -7.5 + 22.5 = 15.
  EXPECT_EQ(test::values_of(data.dq), (std::vector<double>{0, 2.5, 15}));
  EXPECT_EQ(test::values_of(data.dk), (std::vector<double>{0, 0, 0}));
}

TEST_P(PrefixAttention, EqualsTheReferenceForEveryRatioOfHeadsAndHeadDim) {
  for (const auto& [query, kv] : {std::pair{2, 2}, {1, 1}, {6, 2}, {3, 1}, {4, 1}, {8, 1}}) {
    for (const std::int64_t dim : {64, 128, 80, 96, 8, 12, 1}) {
      expect_equal(test::group_tree(37, {17, 0, 1, 33}), {query, kv, dim},
                   fmt::format("{} query heads, {} key-value heads, head_dim {}", query, kv, dim));
    }
  }
}

// Mutations seen: the last value of a key tile dropped; scores of a square seen one row too far.
TEST_P(PrefixAttention, EqualsTheReferenceAroundTileEdges) {
  for (const std::int64_t prefix : {1, 15, 16, 63, 64, 65, 127, 128, 129, 255, 257}) {
    for (const std::int64_t response : {0, 1, 17, 64, 65}) {
      expect_equal(test::group_tree(prefix, {response, 3, response}), {3, 1, 8},
                   fmt::format("prompt {}, responses {}", prefix, response));
    }
  }
  // More than one tile of keys behind a prompt of more than one tile.
  expect_equal(test::group_tree(300, {270, 129}), {3, 1, 8}, "long");
}

// More key tiles on a path than dq has parts. Mutation seen: a part of dq overwritten when rows
// come to it again.
TEST_P(PrefixAttention, EqualsTheReferenceOnLongPaths) {
  expect_equal({{1100, -1}, {40, 0}}, {1, 1, 4}, "a long prompt");
  // Depth first: leaves come before the segment that goes on.
  Tree deep{{20, -1}};
  int parent = 0;
  for (int depth = 0; depth < 12; ++depth) {
    deep.push_back({3, parent});
    deep.push_back({1 + depth % 3 * 8, parent});
    parent = static_cast<int>(deep.size()) - 1;
  }
  expect_equal(deep, {6, 2, 8}, "a deep tree, 2 key-value heads");
  expect_equal(deep, {4, 4, 8}, "a deep tree, 4 key-value heads");
}

TEST_P(PrefixAttention, EqualsTheReferenceForTallStacksOfHeads) {
  expect_equal(test::group_tree(70, {33, 16, 15}), {10, 1, 8}, "10 heads");
  expect_equal(test::group_tree(70, {65, 31}), {14, 2, 8}, "7 heads each");
  expect_equal(test::group_tree(70, {33}), {18, 18, 8}, "18 key-value heads");
}

TEST_P(PrefixAttention, EqualsTheReferenceOnRandomForests) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto tree = test::random_tree(seed, 8, seed % 3 == 0 ? 140 : 20);
    if (test::forest_of(tree).rows() == 0) continue;
    expect_equal(tree, seed % 2 == 0 ? Heads{4, 2, 12} : Heads{3, 1, 8},
                 fmt::format("seed {}", seed));
  }
}

// Machines differ: every kind of vector code that was compiled and can run here.
TEST_P(PrefixAttention, EqualsTheReferenceInTheVectorCodeOfEveryKindOfCpu) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const auto& heads : {Heads{3, 1, 64}, Heads{2, 2, 20}, Heads{5, 1, 7}}) {
      expect_equal(test::group_tree(69, {67, 2, 19}), heads, hwy::TargetName(target));
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(PrefixAttention, TakesNoRows) {
  auto data = test::attention_data(test_, GetParam(), 0, 0, {3, 1, 8});
  test::run(test_.ctx(), AttentionPlan(test::group(0, {0, 0})), data);
  test::run(test_.ctx(), AttentionPlan(PrefixForest()), data);
}

TEST_P(PrefixAttention, KeepsScoresOfAnySizeInRange) {
  // Scores of several hundred: an exponential without the maximum taken off would overflow.
  const auto tree = test::group_tree(20, {5, 9});
  auto data = test::attention_data(test_, GetParam(), 34, 34, {3, 1, 8});
  data.scale = 300;
  test::run(test_.ctx(), AttentionPlan(test::forest_of(tree)), data);
  const auto d = test::differences(data, reference::visibility(tree));
  // A score's own rounding, 300 times magnified, is what is left in the probabilities.
  EXPECT_LE(d.out, 1000 * test::tolerance(GetParam(), 34));
  EXPECT_LE(d.lse, test::tolerance(GetParam(), 34));
  EXPECT_LE(d.dv, 1000 * test::tolerance(GetParam(), 34));
}

TEST_P(PrefixAttention, WithOneResponseIsOrdinaryCausalAttention) {
  const Heads heads{4, 2, 16};
  auto grouped = test::attention_data(test_, GetParam(), 131, 131, heads);
  auto plain = test::attention_data(test_, GetParam(), 131, 131, heads);
  test::run(test_.ctx(), AttentionPlan(test::group(66, {65})), grouped);
  test::run(test_.ctx(), AttentionPlan(test::forest_of({{131, -1}})), plain);
  std::vector<std::vector<int>> causal(131, std::vector<int>(131, 0));
  for (std::size_t i = 0; i < 131; ++i) std::fill_n(causal[i].begin(), i + 1, 1);
  const double bound = test::tolerance(GetParam(), 262);
  EXPECT_LE(test::differences(grouped, causal).largest(), bound);
  EXPECT_LE(test::differences(plain, causal).largest(), bound);
}

/// Rows [0, prefix) and [begin, +length) of x, as one tensor.
Tensor path_rows(test::TestContext& test, ConstTensorView x, std::int64_t prefix,
                 std::int64_t begin, std::int64_t length) {
  auto values = test::values_of(x.rows(0, prefix));
  const auto more = test::values_of(x.rows(begin, length));
  values.insert(values.end(), more.begin(), more.end());
  return test.from(x.dtype(), {prefix + length, x.shape()[1], x.shape()[2]}, values);
}

// Oracle: each response run alone with its own copy of the prompt. Mutation seen: an extra 1/G.
TEST_P(PrefixAttention, BackwardSumsPrefixGradientOverResponses) {
  constexpr std::int64_t kPrefix = 67, kResponses = 64, kLength = 5;
  const Heads heads{3, 1, 16};
  const std::int64_t rows = kPrefix + kResponses * kLength;
  auto data = test::attention_data(test_, GetParam(), rows, rows, heads);
  const auto zeros = test_.zeros(GetParam(), {kPrefix, 3, 16});
  data.d_out = path_rows(test_, zeros, kPrefix, 0, 0);  // the prompt's own rows have no gradient
  {
    const auto random = test_.random(GetParam(), {rows, 3, 16}, "d_out of responses");
    auto values = test::values_of(random);
    std::fill_n(values.begin(), kPrefix * 3 * 16, 0.0);
    data.d_out = test_.from(GetParam(), {rows, 3, 16}, values);
  }
  test::run(test_.ctx(), AttentionPlan(test::group(kPrefix, std::vector(kResponses, kLength))),
            data);

  std::vector<double> dk(kPrefix * 16, 0.0), dv(kPrefix * 16, 0.0), out, expected_out;
  for (std::int64_t r = 0; r < kResponses; ++r) {
    const auto begin = kPrefix + r * kLength;
    const auto alone = [&](const Tensor& x) {
      return path_rows(test_, x, kPrefix, begin, kLength);
    };
    auto one = test::attention_data(test_, GetParam(), kPrefix + kLength, kPrefix + kLength, heads);
    one.q = alone(data.q), one.k = alone(data.k), one.v = alone(data.v);
    one.d_out = alone(data.d_out);
    test::run(test_.ctx(), AttentionPlan(test::forest_of({{kPrefix + kLength, -1}})), one);
    const auto one_dk = test::values_of(one.dk), one_dv = test::values_of(one.dv);
    for (std::size_t i = 0; i < dk.size(); ++i) dk[i] += one_dk[i], dv[i] += one_dv[i];
    const auto response_out = test::values_of(one.out.view().rows(kPrefix, kLength));
    expected_out.insert(expected_out.end(), response_out.begin(), response_out.end());
  }
  out = test::values_of(data.out.view().rows(kPrefix, rows - kPrefix));
  const double bound = test::tolerance(GetParam(), rows * 3);
  EXPECT_LE(test::relative_difference(out, expected_out), bound);
  EXPECT_LE(test::relative_difference(test::values_of(data.dk.view().rows(0, kPrefix)), dk), bound);
  EXPECT_LE(test::relative_difference(test::values_of(data.dv.view().rows(0, kPrefix)), dv), bound);
}

TEST_P(PrefixAttention, TakesColumnsOfAFusedMatrix) {
  const std::int64_t rows = 150, hq = 6, hkv = 2, dim = 16, width = (hq + 2 * hkv) * dim;
  const AttentionPlan plan(test::group(97, {40, 13}));
  auto data = test::attention_data(test_, GetParam(), rows, rows, {hq, hkv, dim});
  test::run(test_.ctx(), plan, data);

  Tensor qkv = test_.zeros(GetParam(), {rows, width}),
         dqkv = test_.zeros(GetParam(), {rows, width});
  const auto heads_of = [&](Tensor& x, std::int64_t begin, std::int64_t heads) {
    return x.view().columns(begin * dim, heads * dim).reshape({rows, heads, dim});
  };
  test::copy(data.q, heads_of(qkv, 0, hq));
  test::copy(data.k, heads_of(qkv, hq, hkv));
  test::copy(data.v, heads_of(qkv, hq + hkv, hkv));
  Tensor wide = test_.zeros(GetParam(), {rows, width}), lse = test_.zeros(GetParam(), {hq, rows});
  const TensorView out = heads_of(wide, 2, hq), dq = heads_of(dqkv, 0, hq);
  const KeySpace space{heads_of(qkv, hq, hkv), heads_of(qkv, hq + hkv, hkv)};
  const KeySpaceGrad grad{heads_of(dqkv, hq, hkv), heads_of(dqkv, hq + hkv, hkv)};
  const ConstTensorView q = heads_of(qkv, 0, hq);
  prefix_attention_forward(test_.ctx(), plan, q, {&space, 1}, data.scale, out, lse);
  prefix_attention_backward(test_.ctx(), plan, q, {&space, 1}, out, lse, data.d_out, data.scale, dq,
                            {&grad, 1});
  EXPECT_TRUE(test::bit_equal(out, data.out));
  EXPECT_TRUE(test::bit_equal(lse, data.softmax_lse));
  EXPECT_TRUE(test::bit_equal(dq, data.dq));
  EXPECT_TRUE(test::bit_equal(grad.dk, data.dk));
  EXPECT_TRUE(test::bit_equal(grad.dv, data.dv));
  // Columns outside of out were left alone.
  for (const double x : test::values_of(wide.view().columns(0, 2 * dim))) EXPECT_EQ(x, 0);
}

TEST_P(PrefixAttention, LeasesExactlyTheScratchItTells) {
  for (const auto& heads : {Heads{9, 3, 64}, Heads{4, 4, 12}, Heads{8, 1, 80}}) {
    for (const int threads : {1, 3}) {
      test::TestContext forward(threads), backward(threads);
      const AttentionPlan plan(test::group(200, {40, 0, 13}));
      auto data = test::attention_data(test_, GetParam(), 253, 253, heads);
      const KeySpace space{data.k, data.v};
      const KeySpaceGrad grad{data.dk, data.dv};
      prefix_attention_forward(forward.ctx(), plan, data.q, {&space, 1}, data.scale, data.out,
                               data.softmax_lse);
      EXPECT_EQ(forward.scratch().high_water_bytes(),
                prefix_attention_forward_scratch_bytes(plan, heads.query, heads.kv, heads.dim,
                                                       GetParam(), threads));
      prefix_attention_backward(backward.ctx(), plan, data.q, {&space, 1}, data.out,
                                data.softmax_lse, data.d_out, data.scale, data.dq, {&grad, 1});
      EXPECT_EQ(backward.scratch().high_water_bytes(),
                prefix_attention_backward_scratch_bytes(plan, heads.query, heads.kv, heads.dim,
                                                        GetParam(), threads));
    }
  }
}

TEST_P(PrefixAttention, RefusesTensorsThatDoNotFit) {
  const AttentionPlan plan(test::group(3, {2}));
  const auto data = [&](std::int64_t queries, std::int64_t keys, Heads heads) {
    return test::attention_data(test_, GetParam(), queries, keys, heads);
  };
  const auto refused = [&](test::AttentionData d) {
    EXPECT_THROW(test::run(test_.ctx(), plan, d), ContractError);
  };
  refused(data(6, 5, {4, 2, 8}));  // rows of q
  refused(data(5, 6, {4, 2, 8}));  // rows of the space
  refused(data(5, 5, {4, 3, 8}));  // 4 heads over 3
  auto wrong = data(5, 5, {4, 2, 8});
  wrong.v = test_.zeros(GetParam(), {5, 2, 7});
  refused(std::move(wrong));
  wrong = data(5, 5, {4, 2, 8});
  wrong.softmax_lse = test_.zeros(GetParam(), {5, 4});
  refused(std::move(wrong));
  wrong = data(5, 5, {4, 2, 8});
  wrong.k = test_.zeros(GetParam() == DType::kF64 ? DType::kF32 : DType::kF64, {5, 2, 8});
  refused(std::move(wrong));
  wrong = data(5, 5, {4, 2, 8});
  wrong.dk = test_.zeros(GetParam(), {5, 1, 8});
  refused(std::move(wrong));
}

}  // namespace
}  // namespace coppice
