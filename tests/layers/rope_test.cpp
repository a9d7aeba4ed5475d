// The rotary embedding: frequencies against transformers, turns against complex multiplication.
//
// Seen red: sign of the sine swapped; second half of a pair read from the first; backward turning
// forward; llama3 without its middle range; yarn's ramp reversed; sines without the attention
// factor.
#include "layers/rope.hpp"

#include <gtest/gtest.h>

#include <numbers>

#include "layers/support.hpp"
#include "reference/naive_layers.hpp"

namespace coppice {
namespace {

using test::relative_difference;
using test::tolerance;
using test::values_of;

COPPICE_BACKENDS_TEST(RopeOp);

struct FrequencyCase {
  const char* name;
  RopeConfig config;
  std::vector<double> frequencies;
  double attention_factor;
};

// head_dim 16; ROPE_INIT_FUNCTIONS of transformers 5.24.0, which computes in f32: printed with nine
// digits, so each is good to 2e-7.
std::vector<FrequencyCase> transformers_cases() {
  return {
      {"default",
       {},
       {1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
        0.000316227786},
       1.0},
      {"linear",
       {.type = RopeType::kLinear, .factor = 4.0},
       {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
        0.000250000012, 7.90569466e-05},
       1.0},
      {"llama3",
       {.type = RopeType::kLlama3,
        .theta = 500000.0,
        .factor = 8.0,
        .original_max_position_embeddings = 8192,
        .low_freq_factor = 1.0,
        .high_freq_factor = 4.0},
       {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05,
        6.64786967e-06, 1.28917316e-06},
       1.0},
      {"yarn",
       {.type = RopeType::kYarn, .factor = 4.0, .original_max_position_embeddings = 1024},
       {1.0, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466, 0.000250000012,
        7.90569466e-05},
       1.138629436111989},
      {"yarn with its options",
       {.type = RopeType::kYarn,
        .theta = 1000000.0,
        .factor = 2.0,
        .original_max_position_embeddings = 2048,
        .beta_fast = 16.0,
        .beta_slow = 2.0,
        .truncate = false,
        .attention_factor = 0.9},
       {1.0, 0.177827939, 0.0282792598, 0.00281170662, 0.000500000024, 8.89139701e-05,
        1.58113871e-05, 2.81170674e-06},
       0.9},
      {"yarn with mscale",
       {.type = RopeType::kYarn,
        .factor = 40.0,
        .original_max_position_embeddings = 64,
        .mscale = 1.0,
        .mscale_all_dim = 0.707},
       {1.0, 0.213453725, 0.0349999964, 0.000790569466, 0.000250000012, 7.90569466e-05,
        2.49999994e-05, 7.90569447e-06},
       1.0857263992561355},
  };
}

TEST(RopeConfig, GivesTheFrequenciesOfTransformers) {
  for (const auto& expected : transformers_cases()) {
    SCOPED_TRACE(expected.name);
    const auto frequencies = rope_frequencies(expected.config, 16);
    ASSERT_EQ(frequencies.size(), expected.frequencies.size());
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      EXPECT_NEAR(frequencies[i] / expected.frequencies[i], 1.0, 4e-7) << i;
    }
    EXPECT_NEAR(rope_attention_factor(expected.config), expected.attention_factor, 1e-15);
  }
}

TEST(RopeConfig, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(rope_frequencies({}, 5), ContractError);
  EXPECT_THROW(rope_frequencies({.theta = 0.0}, 4), ContractError);
  EXPECT_THROW(rope_frequencies({.type = RopeType::kLlama3, .factor = 8.0}, 4), ContractError);
  EXPECT_THROW(rope_frequencies({.type = RopeType::kYarn, .factor = 8.0}, 4), ContractError);
}

// head_dim 2 has one pair with frequency 1: position p turns by p radians.
TEST_P(RopeOp, TurnsAPairByItsPosition) {
  const RopeTable table(test_.memory(), dtype(), {}, 2, 3);
  Tensor x = test_.from(dtype(), {2, 1, 2}, {1, 0, 0, 1});
  rope_forward(ctx(), table, std::vector<std::int32_t>{0, 2}, x);
  EXPECT_LE(relative_difference(values_of(x), {1, 0, -std::sin(2.0), std::cos(2.0)}),
            tolerance(dtype()));
}

TEST_P(RopeOp, EqualsComplexMultiplicationOnStridedHeads) {
  constexpr std::int64_t kTokens = 18, kHeads = 3, kBehind = 8;
  std::vector<std::int32_t> positions;
  for (std::int32_t t = 0; t < kTokens; ++t) positions.push_back(t < 9 ? t : t - 5);
  for (const auto& c : transformers_cases()) {
    for (const std::int64_t width : {2, 6, 16, 34, 64}) {
      const RopeTable table(test_.memory(), dtype(), c.config, width, 13);
      for (const std::int64_t first :
           {5, 8}) {  // heads that start between 16-byte words, and at them
        SCOPED_TRACE(fmt::format("{}, width {}, from column {}", c.name, width, first));
        const std::int64_t columns = first + kHeads * width + kBehind;
        Tensor matrix = test_.random(dtype(), {kTokens, columns}, "rope");
        const auto before = values_of(matrix);
        const TensorView heads =
            matrix.view().columns(first, kHeads * width).reshape({kTokens, kHeads, width});
        const auto expected =
            reference::rope(values_of(heads), kHeads, width, positions,
                            rope_frequencies(c.config, width), rope_attention_factor(c.config));
        rope_forward(ctx(), table, positions, heads);
        EXPECT_LE(relative_difference(values_of(heads), expected), tolerance(dtype()));
        EXPECT_EQ(values_of(matrix.view().columns(0, first)),
                  reference::columns(before, columns, 0, first));
        EXPECT_EQ(values_of(matrix.view().columns(columns - kBehind, kBehind)),
                  reference::columns(before, columns, columns - kBehind, kBehind));
      }
    }
  }
}

// <F x, y> = <x, F^T y>, which holds for the transpose only, attention factor included.
TEST_P(RopeOp, BackwardIsTheTransposeOfForward) {
  const auto config = transformers_cases()[3].config;
  const std::vector<std::int32_t> positions{0, 3, 7, 7, 1};
  const RopeTable table(test_.memory(), dtype(), config, 12, 8);
  Tensor x = test_.random(dtype(), {5, 2, 12}, "x"), y = test_.random(dtype(), {5, 2, 12}, "y");
  const auto x_before = values_of(x), y_before = values_of(y);
  rope_forward(ctx(), table, positions, x);
  rope_backward(ctx(), table, positions, y);
  const double forward = reference::dot(values_of(x), y_before);
  const double backward = reference::dot(x_before, values_of(y));
  const double scale =
      std::sqrt(reference::dot(x_before, x_before) * reference::dot(y_before, y_before));
  EXPECT_LE(std::abs(forward - backward), tolerance(dtype(), 120) * scale);
}

TEST_P(RopeOp, RoundsItsTableOnceFromDouble) {
  const RopeConfig config{.theta = 10000.0};
  const RopeTable table(test_.memory(), dtype(), config, 8, 1001);
  const DType rounded = accumulation_of(dtype());
  const double angle = 1000.0 * std::pow(10000.0, -2.0 * 1 / 8);
  visit_float(rounded, [&]<class T>(TypeTag<T>) {
    EXPECT_EQ(values_of(table.cos())[1000 * 4 + 1], static_cast<T>(std::cos(angle)));
    EXPECT_EQ(values_of(table.sin())[1000 * 4 + 1], static_cast<T>(std::sin(angle)));
  });
  EXPECT_EQ(RopeTable::bytes(dtype(), 8, 1001), 2 * table.cos().numel() * size_of(rounded));
}

TEST_P(RopeOp, RefusesPositionsOutsideItsTable) {
  const RopeTable table(test_.memory(), dtype(), {}, 4, 3);
  Tensor x = test_.zeros(dtype(), {1, 1, 4});
  EXPECT_THROW(rope_forward(ctx(), table, std::vector<std::int32_t>{3}, x), ContractError);
  EXPECT_THROW(rope_forward(ctx(), table, std::vector<std::int32_t>{-1}, x), ContractError);
  EXPECT_THROW(rope_forward(ctx(), table, std::vector<std::int32_t>{0, 0}, x), ContractError);
}

}  // namespace
}  // namespace coppice
