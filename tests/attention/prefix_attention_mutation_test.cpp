// Mistakes that others have made, kept as tests: each must be seen by the comparison that the other
// tests rely on. Positions running on is a mistake of the model, not of attention: see its tests.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/support.hpp"

namespace coppice {
namespace {

using test::AttentionData;
using Seen = std::vector<std::vector<int>>;

constexpr std::int64_t kPrompt = 129, kFirst = 40, kSecond = 33;
constexpr std::int64_t kRows = kPrompt + kFirst + kSecond;

class PrefixAttentionMutation : public testing::TestWithParam<DType> {
 protected:
  PrefixAttentionMutation()
      : data_(test::attention_data(test_, GetParam(), kRows, kRows, {6, 2, 16})),
        mask_(reference::visibility(test::group_tree(kPrompt, {kFirst, kSecond}))) {}

  void run(std::vector<PlanRectangle> rectangles) {
    const std::vector<std::int64_t> space_rows{kRows};
    test::run(test_.ctx(), AttentionPlan(kRows, space_rows, rectangles), data_);
  }
  static std::vector<PlanRectangle> right() {
    return {{0, kPrompt, 0, 0, kPrompt, Mask::kCausal},
            {kPrompt, kFirst + kSecond, 0, 0, kPrompt, Mask::kFull},
            {kPrompt, kFirst, 0, kPrompt, kFirst, Mask::kCausal},
            {kPrompt + kFirst, kSecond, 0, kPrompt + kFirst, kSecond, Mask::kCausal}};
  }
  /// Well above what rounding can do.
  double visible() const { return 10 * test::tolerance(GetParam(), 3 * kRows); }
  void expect_all_wrong(const Seen& mask) {
    const auto d = test::differences(data_, mask);
    for (const double x : {d.out, d.lse, d.dq, d.dk, d.dv}) EXPECT_GT(x, visible());
  }

  test::TestContext test_;
  AttentionData data_;
  Seen mask_;
};

INSTANTIATE_TEST_SUITE_P(Backends, PrefixAttentionMutation,
                         testing::Values(DType::kF32, DType::kF64), test::dtype_name);

TEST_P(PrefixAttentionMutation, NoneIsWhatPasses) {
  run(right());
  EXPECT_LE(test::differences(data_, mask_).largest(), test::tolerance(GetParam(), 3 * kRows));
}

TEST_P(PrefixAttentionMutation, DroppingOnePromptKeyIsSeen) {
  for (const std::int64_t dropped : {std::int64_t{0}, kPrompt / 2, kPrompt - 1}) {
    auto rectangles = right();
    rectangles[0] = {0, dropped, 0, 0, dropped, Mask::kCausal};
    rectangles.push_back({dropped, kPrompt - dropped, 0, 0, dropped, Mask::kFull});
    rectangles.push_back({dropped, 1, 0, dropped, 1, Mask::kCausal});
    rectangles.push_back({dropped + 1, kPrompt - dropped - 1, 0, dropped, 1, Mask::kFull});
    rectangles.push_back(
        {dropped + 1, kPrompt - dropped - 1, 0, dropped + 1, kPrompt - dropped - 1, Mask::kCausal});
    // Responses see the prompt but for one key.
    rectangles[1] = {kPrompt, kFirst + kSecond, 0, 0, dropped, Mask::kFull};
    rectangles.push_back(
        {kPrompt, kFirst + kSecond, 0, dropped + 1, kPrompt - dropped - 1, Mask::kFull});
    run(rectangles);
    expect_all_wrong(mask_);
  }
}

// A square laid into the upper left corner of [response, prompt + response], as a fused kernel does
// that counts both from 0: response row i then sees prompt rows 0 to i only.
TEST_P(PrefixAttentionMutation, TopLeftCausalityIsSeen) {
  auto rectangles = right();
  rectangles[1] = {kPrompt, kFirst, 0, 0, kFirst, Mask::kCausal};
  rectangles[2] = {kPrompt + kFirst, kSecond, 0, 0, kSecond, Mask::kCausal};
  rectangles.pop_back();
  // Its prompt rows are cut where squares end.
  rectangles[0] = {0, kSecond, 0, 0, kSecond, Mask::kCausal};
  rectangles[1] = {kPrompt, kSecond, 0, 0, kSecond, Mask::kCausal};
  rectangles.push_back({kPrompt + kSecond, kFirst - kSecond, 0, 0, kSecond, Mask::kFull});
  rectangles.push_back({kSecond, kPrompt - kSecond, 0, 0, kSecond, Mask::kFull});
  rectangles.push_back({kSecond, kFirst - kSecond, 0, kSecond, kFirst - kSecond, Mask::kCausal});
  rectangles.push_back(
      {kPrompt + kSecond, kFirst - kSecond, 0, kSecond, kFirst - kSecond, Mask::kCausal});
  rectangles.push_back({kFirst, kPrompt - kFirst, 0, kSecond, kFirst - kSecond, Mask::kFull});
  rectangles.push_back({kFirst, kPrompt - kFirst, 0, kFirst, kPrompt - kFirst, Mask::kCausal});
  run(rectangles);
  expect_all_wrong(mask_);
}

TEST_P(PrefixAttentionMutation, AVisibleSiblingIsSeen) {
  auto rectangles = right();
  rectangles.push_back({kPrompt + kFirst, kSecond, 0, kPrompt, kFirst, Mask::kFull});
  run(rectangles);
  expect_all_wrong(mask_);
}

TEST_P(PrefixAttentionMutation, AnExtraDivisionByTheGroupSizeIsSeen) {
  run(right());
  for (Tensor* gradient : {&data_.dk, &data_.dv}) {
    auto values = test::values_of(*gradient);
    const auto prompt = static_cast<std::size_t>(kPrompt * 2 * 16);
    for (std::size_t i = 0; i < prompt; ++i) values[i] /= 2;
    test::copy(test_.from(GetParam(), gradient->shape(), values), *gradient);
  }
  const auto d = test::differences(data_, mask_);
  EXPECT_GT(d.dk, visible());
  EXPECT_GT(d.dv, visible());
}

// Responses over the prompt and over themselves as two attentions that are merged; the backward of
// each with its own LSE, the merge's weights taken for constants. dv comes out right: it hides.
TEST_P(PrefixAttentionMutation, HoldingTheLseConstantInAMergeIsSeen) {
  run(right());
  const auto d_out = test::values_of(data_.d_out);
  const auto whole = reference::attention(test::problem_of(data_, mask_));
  reference::AttentionGradients wrong;
  for (const bool over_prompt : {true, false}) {
    Seen part = mask_;
    for (std::size_t row = 0; row < part.size(); ++row) {
      for (std::size_t key = 0; key < part.size(); ++key) {
        const bool prompt_key = key < static_cast<std::size_t>(kPrompt);
        if (prompt_key != over_prompt) part[row][key] = 0;
      }
    }
    const auto problem = test::problem_of(data_, part);
    const auto piece = reference::attention(problem);
    auto weighted = d_out;
    for (std::size_t i = 0; i < weighted.size(); ++i) {
      const auto row = i / (6 * 16), head = i / 16 % 6, at = head * kRows + row;
      weighted[i] *= std::exp(piece.lse[at] - whole.lse[at]);
    }
    const auto gradients = reference::attention_gradients(problem, weighted);
    if (over_prompt) {
      wrong = gradients;
      continue;
    }
    for (std::size_t i = 0; i < wrong.dq.size(); ++i) wrong.dq[i] += gradients.dq[i];
    for (std::size_t i = 0; i < wrong.dk.size(); ++i) wrong.dk[i] += gradients.dk[i];
    for (std::size_t i = 0; i < wrong.dv.size(); ++i) wrong.dv[i] += gradients.dv[i];
  }
  EXPECT_GT(test::relative_difference(test::values_of(data_.dq), wrong.dq), visible());
  EXPECT_GT(test::relative_difference(test::values_of(data_.dk), wrong.dk), visible());
  EXPECT_LE(test::relative_difference(test::values_of(data_.dv), wrong.dv),
            test::tolerance(GetParam(), 3 * kRows));
}

}  // namespace
}  // namespace coppice
