// Whom a row's results may depend on, bit for bit: its ancestors and the rows up to itself, and
// nothing else in the micro-batch or the machine.
#include <gtest/gtest.h>

#include <limits>

#include "attention/support.hpp"

namespace coppice {
namespace {

using test::AttentionData;
using test::Heads;

class PrefixAttentionIsolation : public testing::TestWithParam<DType> {
 protected:
  AttentionData data(std::int64_t rows, Heads heads) {
    return test::attention_data(test_, GetParam(), rows, rows, heads);
  }
  test::TestContext test_;
};

INSTANTIATE_TEST_SUITE_P(Backends, PrefixAttentionIsolation,
                         testing::Values(DType::kF32, DType::kF64), test::dtype_name);

void overwrite(TensorView x, std::int64_t begin, std::int64_t count, double value) {
  test::fill(x.rows(begin, count), value);
}

void expect_same_rows(const AttentionData& a, const AttentionData& b, std::int64_t begin,
                      std::int64_t count, const char* what) {
  const auto lse = [&](const AttentionData& d) {
    return d.softmax_lse.view().columns(begin, count);
  };
  EXPECT_TRUE(test::bit_equal(a.out.view().rows(begin, count), b.out.view().rows(begin, count)))
      << what << ": out";
  EXPECT_TRUE(test::bit_equal(lse(a), lse(b))) << what << ": lse";
  EXPECT_TRUE(test::bit_equal(a.dq.view().rows(begin, count), b.dq.view().rows(begin, count)))
      << what << ": dq";
}

void expect_same_keys(const AttentionData& a, const AttentionData& b, std::int64_t begin,
                      std::int64_t count, const char* what) {
  EXPECT_TRUE(test::bit_equal(a.dk.view().rows(begin, count), b.dk.view().rows(begin, count)))
      << what << ": dk";
  EXPECT_TRUE(test::bit_equal(a.dv.view().rows(begin, count), b.dv.view().rows(begin, count)))
      << what << ": dv";
}

// Mutation seen: a plan whose responses are seen by the first rows of the next.
TEST_P(PrefixAttentionIsolation, ChangingOneResponseLeavesItsSiblingsAlone) {
  for (const double value :
       {7.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const std::int64_t prompt : {5, 130}) {
      // Response 1 lies between its siblings, 0 and 2.
      const std::vector<std::int64_t> lengths{33, 70, 65};
      const AttentionPlan plan(test::group(prompt, lengths));
      const Heads heads{6, 2, 16};
      auto clean = data(prompt + 168, heads), changed = data(prompt + 168, heads);
      for (Tensor* x : {&changed.q, &changed.k, &changed.v, &changed.d_out}) {
        overwrite(*x, prompt + 33, 70, value);
      }
      test::run(test_.ctx(), plan, clean);
      test::run(test_.ctx(), plan, changed);
      expect_same_rows(clean, changed, 0, prompt, "prompt");
      expect_same_rows(clean, changed, prompt, 33, "response 0");
      expect_same_rows(clean, changed, prompt + 103, 65, "response 2");
      expect_same_keys(clean, changed, prompt, 33, "response 0");
      expect_same_keys(clean, changed, prompt + 103, 65, "response 2");
      EXPECT_FALSE(test::bit_equal(clean.dv, changed.dv));  // the prompt's, and its own
    }
  }
}

TEST_P(PrefixAttentionIsolation, RemovingSiblingsLeavesAResponseAlone) {
  const Heads heads{3, 1, 16};
  const std::int64_t prompt = 100, length = 66;
  auto alone = data(prompt + length, heads), among = data(prompt + length + 90, heads);
  // Siblings behind it, so that the first rows of both are the same.
  test::run(test_.ctx(), AttentionPlan(test::group(prompt, {length})), alone);
  test::run(test_.ctx(), AttentionPlan(test::group(prompt, {length, 40, 50})), among);
  expect_same_rows(alone, among, 0, prompt + length, "prompt and response");
  expect_same_keys(alone, among, prompt, length, "response");
}

// Mutation seen: the square multiplied as a full tile with zeros above the diagonal.
TEST_P(PrefixAttentionIsolation, GarbageInLaterRowsCannotReachEarlierOnes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t prompt = 70, length = 75, rows = prompt + length;
  for (const std::int64_t kept : {1, 13, 64, 70}) {
    const AttentionPlan plan(test::group(prompt, {length}));
    auto clean = data(rows, {3, 1, 16}), changed = data(rows, {3, 1, 16});
    for (Tensor* x : {&changed.q, &changed.k, &changed.v, &changed.d_out}) {
      overwrite(*x, prompt + kept, length - kept, nan);
    }
    test::run(test_.ctx(), plan, clean);
    test::run(test_.ctx(), plan, changed);
    expect_same_rows(clean, changed, 0, prompt + kept, "rows before");
  }
}

TEST_P(PrefixAttentionIsolation, GarbageInEarlierQueriesCannotReachLaterKeys) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t rows = 140;
  for (const std::int64_t spoiled : {1, 13, 64, 70}) {
    const AttentionPlan plan(test::forest_of({{rows, -1}}));
    auto clean = data(rows, {3, 1, 16}), changed = data(rows, {3, 1, 16});
    for (Tensor* x : {&changed.q, &changed.d_out}) overwrite(*x, 0, spoiled, nan);
    test::run(test_.ctx(), plan, clean);
    test::run(test_.ctx(), plan, changed);
    expect_same_keys(clean, changed, spoiled, rows - spoiled, "keys behind");
    expect_same_rows(clean, changed, spoiled, rows - spoiled, "rows behind");
  }
}

// Mutation seen: key tiles dealt out to parts of dq by packed row.
TEST_P(PrefixAttentionIsolation, AGroupDoesNotDependOnTheGroupsBesideIt) {
  const Heads heads{6, 2, 16};
  const std::vector<reference::TreeSegment> group{{130, -1}, {65, 0}, {1, 0}, {3, 2}, {70, 0}};
  const std::int64_t rows = 269, before = 37, after = 91;
  auto tree = group;
  tree.insert(tree.begin(), {before, -1});
  for (std::size_t s = 1; s < tree.size(); ++s) tree[s].parent += tree[s].parent < 0 ? 0 : 1;
  tree.push_back({after, -1});

  auto alone = data(rows, heads);
  auto among = test::attention_data(test_, GetParam(), before + rows + after, before + rows + after,
                                    heads, "among");
  const auto middle = [&](Tensor& x) { return x.view().rows(before, rows); };
  test::copy(alone.q, middle(among.q));
  test::copy(alone.k, middle(among.k));
  test::copy(alone.v, middle(among.v));
  test::copy(alone.d_out, middle(among.d_out));
  test::run(test_.ctx(), AttentionPlan(test::forest_of(group)), alone);
  test::run(test_.ctx(), AttentionPlan(test::forest_of(tree)), among);
  EXPECT_TRUE(test::bit_equal(alone.out, middle(among.out)));
  EXPECT_TRUE(test::bit_equal(alone.softmax_lse, among.softmax_lse.view().columns(before, rows)));
  EXPECT_TRUE(test::bit_equal(alone.dq, middle(among.dq)));
  EXPECT_TRUE(test::bit_equal(alone.dk, middle(among.dk)));
  EXPECT_TRUE(test::bit_equal(alone.dv, middle(among.dv)));
}

// Mutation seen: the number of dq's parts taken from the number of threads.
TEST_P(PrefixAttentionIsolation, NeitherThreadsNorRunsChangeABit) {
  const auto tree = std::vector<reference::TreeSegment>{{200, -1}, {64, 0},   {17, 0}, {5, 2},
                                                        {6, 2},    {140, -1}, {1, 5},  {90, 5}};
  const AttentionPlan plan(test::forest_of(tree));
  const Heads heads{9, 3, 32};
  auto first = data(plan.query_rows(), heads);
  test::run(test_.ctx(), plan, first);
  for (const int threads : {1, 2, 3, 2, 7}) {
    test::TestContext other(threads);
    auto again = data(plan.query_rows(), heads);
    test::run(other.ctx(), plan, again);
    expect_same_rows(first, again, 0, plan.query_rows(), "rows");
    expect_same_keys(first, again, 0, plan.query_rows(), "keys");
  }
}

}  // namespace
}  // namespace coppice
