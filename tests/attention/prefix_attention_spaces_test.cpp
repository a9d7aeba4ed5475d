// Plans of more than one key space: keys kept from an earlier forward, keys gathered from
// elsewhere, keys that do not learn. Oracle: the same attention in one space.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/support.hpp"

namespace coppice {
namespace {

using test::AttentionData;
using test::Heads;

constexpr std::int64_t kPrompt = 131, kFirst = 66, kSecond = 40;
constexpr std::int64_t kRows = kPrompt + kFirst + kSecond;
constexpr Heads kHeads{6, 2, 16};

class PrefixAttentionSpaces : public testing::TestWithParam<DType> {
 protected:
  PrefixAttentionSpaces()
      : whole_(test::attention_data(test_, GetParam(), kRows, kRows, kHeads)),
        split_(test::attention_data(test_, GetParam(), kRows, kRows, kHeads)) {
    test::run(test_.ctx(), AttentionPlan(test::group(kPrompt, {kFirst, kSecond})), whole_);
  }

  static ConstTensorView rows(const Tensor& x, std::int64_t begin, std::int64_t count) {
    return x.view().rows(begin, count);
  }
  static TensorView rows(Tensor& x, std::int64_t begin, std::int64_t count) {
    return x.view().rows(begin, count);
  }

  /// Forward of query rows [begin, +count) of split_.
  void forward(const AttentionPlan& plan, std::int64_t begin, std::int64_t count,
               std::span<const KeySpace> spaces) {
    prefix_attention_forward(test_.ctx(), plan, rows(std::as_const(split_.q), begin, count), spaces,
                             split_.scale, rows(split_.out, begin, count),
                             split_.softmax_lse.view().columns(begin, count));
  }
  void backward(const AttentionPlan& plan, std::int64_t begin, std::int64_t count,
                std::span<const KeySpace> spaces, std::span<const KeySpaceGrad> grads) {
    const AttentionData& d = split_;
    prefix_attention_backward(test_.ctx(), plan, rows(d.q, begin, count), spaces,
                              rows(d.out, begin, count), d.softmax_lse.view().columns(begin, count),
                              rows(d.d_out, begin, count), d.scale, rows(split_.dq, begin, count),
                              grads);
  }
  KeySpace keys(std::int64_t begin, std::int64_t count) const {
    return {rows(split_.k, begin, count), rows(split_.v, begin, count)};
  }
  KeySpaceGrad grads(std::int64_t begin, std::int64_t count, double beta) {
    return {rows(split_.dk, begin, count), rows(split_.dv, begin, count), beta};
  }

  void expect_whole() {
    const double bound = test::tolerance(GetParam(), kRows * kHeads.query / kHeads.kv);
    const auto expect_near = [&](const Tensor& a, const Tensor& b, const char* what) {
      EXPECT_LE(test::relative_difference(test::values_of(a), test::values_of(b)), bound) << what;
    };
    expect_near(split_.out, whole_.out, "out");
    expect_near(split_.softmax_lse, whole_.softmax_lse, "lse");
    expect_near(split_.dq, whole_.dq, "dq");
    expect_near(split_.dk, whole_.dk, "dk");
    expect_near(split_.dv, whole_.dv, "dv");
  }

  test::TestContext test_;
  AttentionData whole_, split_;
};

INSTANTIATE_TEST_SUITE_P(Backends, PrefixAttentionSpaces, testing::Values(DType::kF32, DType::kF64),
                         test::dtype_name);

/// `count` new rows that see `kept` rows of space 0 and themselves (space 1) up to each.
AttentionPlan wave(std::int64_t count, std::int64_t kept) {
  const std::vector<std::int64_t> space_rows{kept, count};
  const std::vector<PlanRectangle> rectangles{{0, count, 0, 0, kept, Mask::kFull},
                                              {0, count, 1, 0, count, Mask::kCausal}};
  return AttentionPlan(count, space_rows, rectangles);
}

// Mutation seen: beta ignored.
TEST_P(PrefixAttentionSpaces, PhasesHandTheirPromptGradientsBack) {
  // The prompt first; each response later over its kept keys.
  const AttentionPlan prompt(test::forest_of({{kPrompt, -1}}));
  const auto first = wave(kFirst, kPrompt), second = wave(kSecond, kPrompt);
  const auto kept = keys(0, kPrompt);
  const KeySpace with_first[] = {kept, keys(kPrompt, kFirst)};
  const KeySpace with_second[] = {kept, keys(kPrompt + kFirst, kSecond)};
  forward(prompt, 0, kPrompt, {&kept, 1});
  forward(first, kPrompt, kFirst, with_first);
  forward(second, kPrompt + kFirst, kSecond, with_second);

  const KeySpaceGrad of_first[] = {grads(0, kPrompt, 0), grads(kPrompt, kFirst, 0)};
  const KeySpaceGrad of_second[] = {grads(0, kPrompt, 1), grads(kPrompt + kFirst, kSecond, 0)};
  const auto of_prompt = grads(0, kPrompt, 1);
  backward(first, kPrompt, kFirst, with_first, of_first);
  backward(second, kPrompt + kFirst, kSecond, with_second, of_second);
  backward(prompt, 0, kPrompt, {&kept, 1}, {&of_prompt, 1});
  expect_whole();
}

TEST_P(PrefixAttentionSpaces, ResponsesOfOneWaveShareTheKeptPrompt) {
  const std::int64_t count = kFirst + kSecond;
  const std::vector<std::int64_t> space_rows{kPrompt, count};
  const std::vector<PlanRectangle> rectangles{{0, count, 0, 0, kPrompt, Mask::kFull},
                                              {0, kFirst, 1, 0, kFirst, Mask::kCausal},
                                              {kFirst, kSecond, 1, kFirst, kSecond, Mask::kCausal}};
  const AttentionPlan prompt(test::forest_of({{kPrompt, -1}}));
  const AttentionPlan responses(count, space_rows, rectangles);
  const KeySpace spaces[] = {keys(0, kPrompt), keys(kPrompt, count)};
  forward(prompt, 0, kPrompt, {spaces, 1});
  forward(responses, kPrompt, count, spaces);
  const KeySpaceGrad both[] = {grads(0, kPrompt, 0), grads(kPrompt, count, 0)};
  const auto of_prompt = grads(0, kPrompt, 1);
  backward(responses, kPrompt, count, spaces, both);
  backward(prompt, 0, kPrompt, {spaces, 1}, {&of_prompt, 1});
  expect_whole();
}

// Query rows of one rank out of two: the middle of the prompt and the second response. It sees the
// prompt's rows of the other rank among gathered rows, in two pieces around its own.
TEST_P(PrefixAttentionSpaces, RanksWithPartsOfAPromptTogetherAreTheWhole) {
  constexpr std::int64_t kA = 40, kB = 97, kEnd = kPrompt + kFirst;
  constexpr std::int64_t kOwn = kB - kA;  // the middle
  const KeySpace everything[] = {keys(0, kRows)};
  const KeySpaceGrad all[] = {grads(0, kRows, 0)};
  const KeySpaceGrad add[] = {grads(0, kRows, 1)};
  const std::vector<std::int64_t> space_rows{kRows};
  // Rank 1's rows, one run after the other, over all rows in packed order.
  const std::vector<PlanRectangle> middle{{0, kOwn, 0, 0, kA, Mask::kFull},
                                          {0, kOwn, 0, kA, kOwn, Mask::kCausal}};
  const std::vector<PlanRectangle> second{{0, kSecond, 0, 0, kPrompt, Mask::kFull},
                                          {0, kSecond, 0, kEnd, kSecond, Mask::kCausal}};
  // Rank 0's: the prompt's ends and the first response.
  const std::vector<PlanRectangle> head{{0, kA, 0, 0, kA, Mask::kCausal}};
  const std::vector<PlanRectangle> tail{{0, kEnd - kB, 0, 0, kB, Mask::kFull},
                                        {0, kPrompt - kB, 0, kB, kPrompt - kB, Mask::kCausal},
                                        {kPrompt - kB, kFirst, 0, kB, kPrompt - kB, Mask::kFull},
                                        {kPrompt - kB, kFirst, 0, kPrompt, kFirst, Mask::kCausal}};
  const AttentionPlan plans[] = {
      AttentionPlan(kA, space_rows, head), AttentionPlan(kOwn, space_rows, middle),
      AttentionPlan(kEnd - kB, space_rows, tail), AttentionPlan(kSecond, space_rows, second)};
  const std::int64_t begins[] = {0, kA, kB, kEnd};
  std::int64_t pairs = 0;
  for (int i = 0; i < 4; ++i) {
    forward(plans[i], begins[i], plans[i].query_rows(), everything);
    backward(plans[i], begins[i], plans[i].query_rows(), everything, i == 0 ? all : add);
    pairs += plans[i].visible_pairs();
  }
  EXPECT_EQ(pairs, test::group(kPrompt, {kFirst, kSecond}).visible_pairs());
  expect_whole();
}

TEST_P(PrefixAttentionSpaces, ASpaceThatDoesNotLearnChangesNothingElse) {
  const auto plan = wave(kFirst, kPrompt);
  const KeySpace spaces[] = {keys(0, kPrompt), keys(kPrompt, kFirst)};
  const KeySpaceGrad learning[] = {grads(0, kPrompt, 0), grads(kPrompt, kFirst, 0)};
  forward(plan, kPrompt, kFirst, spaces);
  backward(plan, kPrompt, kFirst, spaces, learning);
  auto other = test::attention_data(test_, GetParam(), kRows, kRows, kHeads);
  std::swap(other.dq, split_.dq);
  std::swap(other.dk, split_.dk);
  std::swap(other.dv, split_.dv);
  const KeySpaceGrad fixed[] = {{}, grads(kPrompt, kFirst, 0)};
  backward(plan, kPrompt, kFirst, spaces, fixed);
  const auto same = [&](const Tensor& a, const Tensor& b) {
    return test::bit_equal(rows(a, kPrompt, kFirst), rows(b, kPrompt, kFirst));
  };
  EXPECT_TRUE(same(split_.dq, other.dq));
  EXPECT_TRUE(same(split_.dk, other.dk));
  EXPECT_TRUE(same(split_.dv, other.dv));
  for (const double x : test::values_of(rows(split_.dk, 0, kPrompt))) EXPECT_TRUE(std::isnan(x));
}

TEST_P(PrefixAttentionSpaces, RowsOfAPlanWithoutSpacesAreZero) {
  const AttentionPlan plan(3, {}, {});
  auto data = test::attention_data(test_, GetParam(), 3, 0, kHeads);
  prefix_attention_forward(test_.ctx(), plan, data.q, {}, data.scale, data.out, data.softmax_lse);
  prefix_attention_backward(test_.ctx(), plan, data.q, {}, data.out, data.softmax_lse, data.d_out,
                            data.scale, data.dq, {});
  for (const double x : test::values_of(data.out)) EXPECT_EQ(x, 0);
  for (const double x : test::values_of(data.dq)) EXPECT_EQ(x, 0);
}

TEST_P(PrefixAttentionSpaces, RowsThatSeeNothingAndKeysThatNobodySeesAreZero) {
  const std::vector<std::int64_t> space_rows{10};
  const std::vector<PlanRectangle> rectangles{{2, 3, 0, 4, 2, Mask::kFull}};
  const AttentionPlan plan(7, space_rows, rectangles);
  auto data = test::attention_data(test_, GetParam(), 7, 10, kHeads);
  test::run(test_.ctx(), plan, data);
  for (const double x : test::values_of(rows(data.out, 0, 2))) EXPECT_EQ(x, 0);
  for (const double x : test::values_of(rows(data.dq, 5, 2))) EXPECT_EQ(x, 0);
  for (const double x : test::values_of(data.softmax_lse.view().columns(0, 2))) {
    EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
  }
  for (const auto* gradient : {&data.dk, &data.dv}) {
    for (const double x : test::values_of(rows(*gradient, 0, 4))) EXPECT_EQ(x, 0);
    for (const double x : test::values_of(rows(*gradient, 6, 4))) EXPECT_EQ(x, 0);
    for (const double x : test::values_of(rows(*gradient, 4, 2))) EXPECT_NE(x, 0);
  }
}

}  // namespace
}  // namespace coppice
