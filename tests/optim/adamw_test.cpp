// The update by hand, against a double reference written from PyTorch's definition, and its
// indifference to threads and block edges.
#include "optim/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/copy.hpp"
#include "optim/support.hpp"

namespace coppice {
namespace {

using test::TestContext;
using test::values_of;

Parameter parameter(Tensor value, Tensor grad, WeightDecay decay) {
  Parameter p;
  p.name = "p";
  p.value = std::move(value);
  p.grad = std::move(grad);
  p.weight_decay = decay;
  return p;
}

void assign(TestContext& test, TensorView to, ConstTensorView from) {
  copy(test.ctx().stream, from, to);
}

// torch.optim.AdamW, one element, in double.
struct Reference {
  double w, m = 0, v = 0;
  int s = 0;
  void step(double g, double lr, const AdamWConfig& c, bool decay) {
    ++s;
    if (decay) w *= 1 - lr * c.weight_decay;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(c.beta1, s));
    const double v_hat = v / (1 - std::pow(c.beta2, s));
    w -= lr * m_hat / (std::sqrt(v_hat) + c.epsilon);
  }
};

class AdamWTest : public test::OptimTest {
 protected:
  double epsilon() const { return dtype() == DType::kF64 ? 2.3e-16 : 1.2e-7; }
};
INSTANTIATE_TEST_SUITE_P(Backends, AdamWTest, testing::ValuesIn(test::optim_backends()),
                         test::optim_backend_name);

// beta1 = beta2 = 0.5, epsilon = 1, rate 1, decay 0.5, g = 2. The first moments are g and g^2 after
// correction, so w = 8 (1 - 0.5) - 2 / (2 + 1) = 4 - 2/3.
// Second update, g = -4: m = 1/2 (1) - 2 = -1.5, / 0.75 = -2; v = 1 + 8 = 9, / 0.75 = 12.
// Mutations seen red: decay after the update; no correction; epsilon inside the root.
TEST_P(AdamWTest, FollowsTwoUpdatesWorkedByHand) {
  TestContext test(device());
  Parameter p = parameter(test.from(dtype(), {1, 1}, {8}), test.from(dtype(), {1, 1}, {2}),
                          WeightDecay::kYes);
  const std::vector<Parameter*> parameters{&p};
  AdamW optimizer({0.5, 0.5, 1.0, 0.5}, parameters, test.memory());
  optimizer.step(test.ctx(), 1.0, 1.0);
  const double w1 = 4 - 2.0 / 3;
  EXPECT_NEAR(values_of(p.value)[0], w1, 16 * epsilon());
  EXPECT_EQ(values_of(optimizer.moments()[0].exp_avg)[0], 1.0);
  EXPECT_EQ(values_of(optimizer.moments()[0].exp_avg_sq)[0], 2.0);

  const Tensor next = test.from(dtype(), {1, 1}, {-4});
  assign(test, p.grad, next);
  optimizer.step(test.ctx(), 1.0, 1.0);
  const double w2 = w1 * 0.5 + 2 / (std::sqrt(12.0) + 1);
  EXPECT_NEAR(values_of(p.value)[0], w2, 16 * epsilon());
  EXPECT_EQ(optimizer.applied_steps(), 2);
}

// A prime size, so that blocks and vectors both end inside.  Mutations seen red: beta1 and beta2
// exchanged; the tail of a block left alone; the applied update counted from 0.
TEST_P(AdamWTest, EqualsTheDoubleReferenceOverManySteps) {
  TestContext test(device());
  const AdamWConfig config{0.9, 0.95, 1e-8, 0.1};
  constexpr std::int64_t kSize = 65599;
  Parameter matrix = parameter(test.random(dtype(), {kSize}, "w"), test.zeros(dtype(), {kSize}),
                               WeightDecay::kYes);
  Parameter norm =
      parameter(test.random(dtype(), {5}, "n"), test.zeros(dtype(), {5}), WeightDecay::kNo);
  const std::vector<Parameter*> parameters{&matrix, &norm};
  std::vector<std::vector<Reference>> expected;
  for (Parameter* p : parameters) {
    auto& elements = expected.emplace_back();
    for (double w : values_of(p->value)) elements.push_back({w});
  }
  AdamW optimizer(config, parameters, test.memory());
  constexpr int kSteps = 6;
  constexpr double kRate = 1e-2, kScale = 0.25;
  for (int step = 1; step <= kSteps; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Parameter& p = *parameters[i];
      const Tensor grad = test.random(dtype(), p.grad.shape(), fmt::format("g{}.{}", step, i));
      assign(test, p.grad, grad);
      const auto g = values_of(grad);
      for (std::size_t j = 0; j < g.size(); ++j) {
        expected[i][j].step(kScale * g[j], kRate, config, p.weight_decay == WeightDecay::kYes);
      }
    }
    optimizer.step(test.ctx(), kRate, kScale);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto actual = values_of(parameters[i]->value);
    for (std::size_t j = 0; j < actual.size(); ++j) {
      // Each step rounds the weight once and an update of at most about 3 rates a few times.
      const double bound = kSteps * epsilon() * (std::abs(expected[i][j].w) + 1);
      ASSERT_NEAR(actual[j], expected[i][j].w, bound) << i << " " << j;
    }
  }
}

TEST_P(AdamWTest, DecaysMatricesAndLeavesNormsAlone) {
  TestContext test(device());
  Parameter matrix =
      parameter(test.filled(dtype(), {1, 3}, 4), test.zeros(dtype(), {1, 3}), WeightDecay::kYes);
  Parameter norm =
      parameter(test.filled(dtype(), {3}, 4), test.zeros(dtype(), {3}), WeightDecay::kNo);
  const std::vector<Parameter*> parameters{&matrix, &norm};
  AdamW optimizer({0.9, 0.95, 1e-8, 0.5}, parameters, test.memory());
  optimizer.step(test.ctx(), 0.5, 1.0);
  EXPECT_EQ(values_of(matrix.value), std::vector<double>(3, 3.0));
  EXPECT_EQ(values_of(norm.value), std::vector<double>(3, 4.0));
}

TEST_P(AdamWTest, LeavesFrozenParametersAlone) {
  TestContext test(device());
  Parameter frozen;
  frozen.value = test.filled(dtype(), {2}, 4);
  frozen.trainable = false;
  const std::vector<Parameter*> parameters{&frozen};
  AdamW optimizer({0.9, 0.95, 1e-8, 0.5}, parameters, test.memory());
  optimizer.step(test.ctx(), 0.5, 1.0);
  EXPECT_EQ(values_of(frozen.value), std::vector<double>(2, 4.0));
  EXPECT_FALSE(optimizer.moments()[0].exp_avg.has_value());
}

TEST_P(AdamWTest, GivesTheSameBitsForAnyThreadCount) {
  std::vector<std::vector<double>> results;
  for (int threads : {1, 2, 3, 8}) {
    TestContext test(device(), threads);
    Parameter p = parameter(test.random(dtype(), {200003}, "w"),
                            test.random(dtype(), {200003}, "g"), WeightDecay::kYes);
    const std::vector<Parameter*> parameters{&p};
    AdamW optimizer({0.9, 0.95, 1e-8, 0.1}, parameters, test.memory());
    for (int step = 0; step < 3; ++step) optimizer.step(test.ctx(), 1e-3, 0.7);
    results.push_back(values_of(p.value));
  }
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

// An element's result must not depend on whether it went through the vectors or the tail.
TEST_P(AdamWTest, TreatsEveryElementAlikeWhateverItsPlace) {
  TestContext test(device());
  for (std::int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33}) {
    Parameter p = parameter(test.filled(dtype(), {size}, 0.3), test.filled(dtype(), {size}, 0.7),
                            WeightDecay::kYes);
    const std::vector<Parameter*> parameters{&p};
    AdamW optimizer({0.9, 0.95, 1e-8, 0.1}, parameters, test.memory());
    for (int step = 0; step < 3; ++step) optimizer.step(test.ctx(), 1e-2, 0.7);
    const auto values = values_of(p.value);
    EXPECT_EQ(values, std::vector<double>(values.size(), values.front())) << size;
  }
}

TEST_P(AdamWTest, ContinuesFromSetMomentsAsIfItHadNeverStopped) {
  TestContext test(device());
  const auto make = [&] {
    return parameter(test.random(dtype(), {37}, "w"), test.random(dtype(), {37}, "g"),
                     WeightDecay::kYes);
  };
  Parameter whole = make(), resumed = make();
  const std::vector<Parameter*> whole_list{&whole}, resumed_list{&resumed};
  const AdamWConfig config{0.9, 0.95, 1e-8, 0.1};
  AdamW first(config, whole_list, test.memory());
  for (int step = 0; step < 3; ++step) first.step(test.ctx(), 1e-3, 1.0);
  assign(test, resumed.value, whole.value);
  AdamW second(config, resumed_list, test.memory());
  assign(test, second.moments()[0].exp_avg, first.moments()[0].exp_avg);
  assign(test, second.moments()[0].exp_avg_sq, first.moments()[0].exp_avg_sq);
  second.set_applied_steps(first.applied_steps());
  first.step(test.ctx(), 1e-3, 1.0);
  second.step(test.ctx(), 1e-3, 1.0);
  EXPECT_TRUE(test::bit_equal(whole.value, resumed.value));
}

class AdamWRounded : public test::OptimTest {};
INSTANTIATE_TEST_SUITE_P(Backends, AdamWRounded,
                         testing::ValuesIn(test::optim_backends(DType::kF32)),
                         test::optim_backend_name);

// The weights learn at full precision: 200 steps of 1e-3 move a bf16 value of 1, whose neighbours
// lie 0.004 below, by 0.2.  Mutations seen red: the update reading the rounded value; value not
// written.
TEST_P(AdamWRounded, KeepsTheMasterAndRoundsItOnceAStep) {
  TestContext test(device());
  for (const std::int64_t size : {7, 1000, device().kind == DeviceKind::kCpu ? 65537 : 2056}) {
    Parameter p = parameter(test.filled(DType::kBF16, {size}, 1.0),
                            test.filled(DType::kF32, {size}, 1.0), WeightDecay::kNo);
    p.master = test.filled(DType::kF32, {size}, 1.0);
    Parameter plain = parameter(test.filled(DType::kF32, {size}, 1.0),
                                test.filled(DType::kF32, {size}, 1.0), WeightDecay::kNo);
    const std::vector<Parameter*> parameters{&p}, plain_list{&plain};
    AdamW optimizer({}, parameters, test.memory()), reference({}, plain_list, test.memory());
    for (int step = 0; step < 200; ++step) {
      optimizer.step(test.ctx(), 1e-3, 1.0);
      reference.step(test.ctx(), 1e-3, 1.0);
    }
    EXPECT_TRUE(test::bit_equal(p.master, plain.value));
    EXPECT_NEAR(values_of(p.master)[0], 0.8, 1e-4);
    for (const double value : values_of(p.value)) EXPECT_EQ(value, 0.80078125);  // 205 / 256
  }
}

TEST(AdamWMemory, CountsItsMomentsByName) {
  TestContext test;
  Parameter p =
      parameter(test.zeros(DType::kF32, {10}), test.zeros(DType::kF32, {10}), WeightDecay::kYes);
  const std::vector<Parameter*> parameters{&p};
  AdamW optimizer({}, parameters, test.memory());
  EXPECT_EQ(test.memory().by_name().at("moments"), 2 * 10 * 4);
}

TEST(AdamWContract, RefusesTensorsThatDisagree) {
  TestContext test;
  Tensor value = test.zeros(DType::kF32, {3}), grad = test.zeros(DType::kF32, {2});
  Tensor m = test.zeros(DType::kF32, {3}), v = test.zeros(DType::kF32, {3});
  const std::vector<AdamWTensors> tensors{{value, grad, m, v, false}};
  EXPECT_THROW(adamw_update(test.ctx(), tensors, {}), ContractError);
}

}  // namespace
}  // namespace coppice
