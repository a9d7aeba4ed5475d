// The gated activation against its formula, over its whole range.
//
// Seen red: gate and up swapped; the derivative without its g (1 - s) term.
#include "layers/swiglu.hpp"

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

COPPICE_BACKENDS_TEST(Swiglu);

// silu(0) = 0; silu(ln 3) = ln 3 * 3/4. Slopes: silu'(0) = 1/2.
TEST_P(Swiglu, EqualsValuesWorkedByHand) {
  const Tensor gate_up = test_.from(dtype(), {1, 4}, {0.0, std::log(3.0), 5.0, 2.0});
  Tensor hidden = test_.zeros(dtype(), {1, 2}), d_gate_up = test_.zeros(dtype(), {1, 4});
  swiglu_forward(ctx(), gate_up, hidden);
  EXPECT_EQ(values_of(hidden)[0], 0.0);
  EXPECT_NEAR(values_of(hidden)[1], 1.5 * std::log(3.0), 2 * tolerance(dtype()));
  swiglu_backward(ctx(), gate_up, test_.from(dtype(), {1, 2}, {1.0, 0.0}), d_gate_up);
  EXPECT_EQ(values_of(d_gate_up), (std::vector<double>{2.5, 0.0, 0.0, 0.0}));
}

TEST(SwigluReference, GradientAgreesWithFiniteDifferences) {
  test::TestContext test;
  const auto gate_up = values_of(test.random(DType::kF64, {3, 8}, "gate_up"));
  const auto d_hidden = values_of(test.random(DType::kF64, {3, 4}, "d_hidden"));
  const auto numeric = reference::finite_differences(
      [&](const auto& at) { return reference::dot(d_hidden, reference::swiglu(at, 4)); }, gate_up);
  EXPECT_LE(relative_difference(reference::swiglu_gradient(gate_up, 4, d_hidden), numeric),
            reference::kFiniteDifferenceTolerance);
}

TEST_P(Swiglu, EqualsTheReferenceForEveryShapeAndStride) {
  for (const std::int64_t tokens : {0, 1, 9, 33}) {
    for (const std::int64_t width : {1, 7, 8, 16, 41, 2056}) {
      SCOPED_TRACE(fmt::format("{} x {}", tokens, width));
      // Rows that start at multiples of 16 bytes where the width is one too, and others.
      const std::int64_t around = width % 8 == 0 && width != 16 ? 8 : 3;
      Tensor wide = test_.random(dtype(), {tokens, around + 2 * width + around}, "gate_up", 4.0);
      Tensor wide_hidden = test_.zeros(dtype(), {tokens, around + width + around});
      const TensorView gate_up = wide.view().columns(around, 2 * width);
      const TensorView hidden = wide_hidden.view().columns(around, width);
      const auto before = values_of(wide);
      const Tensor d_hidden = test_.random(dtype(), {tokens, width}, "d_hidden");
      const auto x = values_of(gate_up);
      swiglu_forward(ctx(), gate_up, hidden);
      EXPECT_LE(relative_difference(values_of(hidden), reference::swiglu(x, width)),
                tolerance(dtype()));
      swiglu_backward(ctx(), gate_up, d_hidden, gate_up);  // in place, as a block uses it
      EXPECT_LE(relative_difference(values_of(gate_up),
                                    reference::swiglu_gradient(x, width, values_of(d_hidden))),
                tolerance(dtype()));
      const auto all = around + 2 * width + around;
      for (const auto column : {std::int64_t{0}, all - around}) {
        EXPECT_EQ(values_of(wide.view().columns(column, around)),
                  reference::columns(before, all, column, around));
      }
      EXPECT_EQ(values_of(wide_hidden.view().columns(around + width, around)),
                std::vector<double>(static_cast<std::size_t>(tokens * around), 0.0));
    }
  }
}

TEST_P(Swiglu, IsExactToRoundingOverItsWholeRange) {
  for (double gate = -80; gate <= 200; gate += 0.37) {
    const Tensor gate_up = test_.from(dtype(), {1, 2}, {gate, 1.0});
    Tensor hidden = test_.zeros(dtype(), {1, 1});
    swiglu_forward(ctx(), gate_up, hidden);
    const auto x = values_of(gate_up);
    EXPECT_LE(relative_difference(values_of(hidden), reference::swiglu(x, 1)), tolerance(dtype()))
        << gate;
  }
}

TEST_P(Swiglu, StaysFiniteAtTheEndsAndKeepsNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor gate_up = test_.from(dtype(), {1, 8}, {-1e30, 1e30, nan, -3e3, 1, 1, 1, 1});
  Tensor hidden = test_.zeros(dtype(), {1, 4});
  swiglu_forward(ctx(), gate_up, hidden);
  const auto h = values_of(hidden);
  EXPECT_LE(std::abs(h[0]), 1e-7);
  EXPECT_GE(h[1], 0.99e30);
  EXPECT_TRUE(std::isnan(h[2]));
  EXPECT_LE(std::abs(h[3]), 1e-30);
}

TEST_P(Swiglu, GivesTheSameBitsForAnyThreadCount) {
  const Tensor gate_up = test_.random(dtype(), {50, 38}, "gate_up");
  Tensor one = test_.zeros(dtype(), {50, 19}), three = test_.zeros(dtype(), {50, 19});
  ctx().threads = 1;
  swiglu_forward(ctx(), gate_up, one);
  ctx().threads = 3;
  swiglu_forward(ctx(), gate_up, three);
  EXPECT_TRUE(bit_equal(one, three));
}

TEST_P(Swiglu, RefusesShapesThatDisagree) {
  Tensor gate_up = test_.zeros(dtype(), {2, 6}), hidden = test_.zeros(dtype(), {2, 2});
  EXPECT_THROW(swiglu_forward(ctx(), gate_up, hidden), ContractError);
}

}  // namespace
}  // namespace coppice
