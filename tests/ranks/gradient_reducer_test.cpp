// Gradients, norm and updated values of every kind of part, on every grid, against sums and updates
// worked with plain loops over the logical tensors. Contributions are small integers, so that sums
// are exact whatever their order.
#include "parallel/gradient_reducer.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "optim/adamw.hpp"
#include "optim/grad_norm.hpp"
#include "ranks/fake_parameters.hpp"
#include "ranks/ranks_session.hpp"

namespace coppice {
namespace {

using test::FakeGrid;
using test::FakeParameters;
using test::LogicalValues;
using test::TestContext;

// What one rank adds to the gradient of an element: replica r, and s of the ranks that sum it.
double contribution(const std::string& name, std::int64_t element, int r, int s, int step) {
  const auto salt = static_cast<std::int64_t>(name[0]) + 3 * static_cast<std::int64_t>(name.size());
  return static_cast<double>((element * 7 + salt * 3 + r * 13 + s * 29 + step * 5) % 11 - 5);
}
double first_value(const std::string& name, std::int64_t element) {
  return static_cast<double>((element * 5 + static_cast<std::int64_t>(name.size())) % 17 - 8) / 8;
}

struct Case {
  DType dtype;
  Zero zero;
};

class GradientReducerOnEveryGrid : public testing::TestWithParam<Case> {
 protected:
  template <class Body>
  void on_every_grid(Body&& body) {
    auto& session = test::ranks_session();
    for (const FakeGrid& fake : test::fake_grids(session.size())) {
      sharers_ = std::max(1, fake.sizes.tensor / fake.heads);
      ProcessGrid grid(session, fake.sizes, {.seconds = 60}, sharers_);
      TestContext test(1);
      FakeParameters fakes(grid, fake.heads, GetParam().dtype, test.memory());
      fakes.fill(&Parameter::value, first_value);
      SCOPED_TRACE(fmt::format("tp {} cp {} dp {} heads {} rank {}", fake.sizes.tensor,
                               fake.sizes.context, fake.sizes.data, fake.heads, session.rank()));
      body(grid, test, fakes);
    }
  }
  // The ranks that hold a part of the element's gradient besides the replicas.
  int sources(const std::string& name, const ProcessGrid& grid) const {
    if (name == "norm") return grid.sizes().tensor;
    return name == "k" || name == "v" ? sharers_ : 1;
  }
  double expected(const std::string& name, std::int64_t element, const ProcessGrid& grid,
                  int step) const {
    double sum = 0;
    for (int r = 0; r < grid.sizes().context * grid.sizes().data; ++r)
      for (int s = 0; s < sources(name, grid); ++s) sum += contribution(name, element, r, s, step);
    return sum;
  }
  void fill_gradients(ProcessGrid& grid, FakeParameters& fakes, int step) const {
    fakes.fill(&Parameter::grad, [&](const std::string& name, std::int64_t element) {
      const int s = grid.coordinates().tp_rank % sources(name, grid);
      return contribution(name, element, grid.replicas().rank(), s, step);
    });
  }
  int sharers_ = 1;
};

// Mutations seen red: shared key-value heads summed over all tensor ranks; the sum over tensor
// ranks left out; the replicas' sum left out; the share put at the gradient's first rows.
TEST_P(GradientReducerOnEveryGrid, SumsEveryPartOverTheRanksThatHoldAShareOfIt) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes) {
    GradientReducer reducer(grid, GetParam().zero);
    fill_gradients(grid, fakes, 0);
    reducer.complete(test.ctx(), fakes.list());
    fakes.for_each([&](Parameter& parameter, const ParameterPart& part, std::int64_t element,
                       std::int64_t row, std::int64_t column) {
      const RowRange mine = reducer.updated().of(parameter);
      if (!parameter.trainable || row < mine.begin || row >= mine.end) return;
      ASSERT_EQ(test::element_of(parameter.grad, row, column),
                expected(part.name, element, grid, 0))
          << part.name << " " << element;
    });
  });
}

// Mutations seen red: parts counted by every rank that holds them (shared heads twice); every
// replica counting all rows; the sums of the first test.
TEST_P(GradientReducerOnEveryGrid, TheNormCountsEveryElementOnce) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes) {
    GradientReducer reducer(grid, GetParam().zero);
    fill_gradients(grid, fakes, 0);
    reducer.complete(test.ctx(), fakes.list());
    double squares = 0;
    for (const auto& [name, shape] : fakes.shapes())
      for (std::int64_t element = 0; name != "frozen" && element < shape.numel(); ++element)
        squares += std::pow(expected(name, element, grid, 0), 2);
    EXPECT_EQ(global_grad_norm(test.ctx(), fakes.list(), reducer.spoken_for(), grid.world()),
              std::sqrt(squares));
  });
}

// torch.optim.AdamW, one element, in double.
struct Reference {
  double w, m = 0, v = 0;
  void step(double g, int s, double lr, const AdamWConfig& c, bool decay) {
    if (decay) w *= 1 - lr * c.weight_decay;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    w -= lr * (m / (1 - std::pow(c.beta1, s))) /
         (std::sqrt(v / (1 - std::pow(c.beta2, s))) + c.epsilon);
  }
};

// Mutations seen red: the gather of fused parameters left out; the share's moments fed with the
// gradient's first rows; the sums of the first test.
TEST_P(GradientReducerOnEveryGrid, UpdatedValuesAreOneRanksOnEveryRank) {
  const AdamWConfig config{0.9, 0.95, 1e-8, 0.1};
  constexpr double kRate = 1e-2;
  constexpr int kSteps = 3;
  const double epsilon = GetParam().dtype == DType::kF64 ? 2.3e-16 : 1.2e-7;
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes) {
    GradientReducer reducer(grid, GetParam().zero);
    const auto parameters = fakes.list();
    AdamW optimizer(config, parameters, test.memory(), reducer.updated());
    for (int step = 1; step <= kSteps; ++step) {
      fill_gradients(grid, fakes, step);
      reducer.complete(test.ctx(), parameters);
      optimizer.step(test.ctx(), kRate, 1.0);
      reducer.gather_values(test.ctx(), parameters);
    }
    fakes.for_each([&](Parameter& parameter, const ParameterPart& part, std::int64_t element,
                       std::int64_t row, std::int64_t column) {
      Reference reference{first_value(part.name, element)};
      for (int step = 1; parameter.trainable && step <= kSteps; ++step)
        reference.step(expected(part.name, element, grid, step), step, kRate, config,
                       parameter.weight_decay == WeightDecay::kYes);
      // Each step rounds the weight once, and an update of about the rate a few times.
      ASSERT_NEAR(test::element_of(parameter.value, row, column), reference.w,
                  kSteps * epsilon * (std::abs(reference.w) + 1))
          << part.name << " " << element;
    });
    // Padding rows stay exactly 0.
    const Parameter& vocabulary = *parameters[0];
    for (std::int64_t row = vocabulary.parts[0].shard.local_shape[0];
         row < vocabulary.value.shape()[0]; ++row)
      for (std::int64_t column = 0; column < 3; ++column)
        ASSERT_EQ(test::element_of(vocabulary.value, row, column), 0.0);
    // Moments are held for the share only.
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i]->trainable) continue;
      ASSERT_EQ(optimizer.moments()[i].exp_avg.shape()[0],
                reducer.updated().of(*parameters[i]).count());
    }
  });
}

// The payload over the replicas' axis: all of every trainable gradient in, the share of every value
// out; without sharding, all of the gradient through one all-reduce.
TEST_P(GradientReducerOnEveryGrid, SendsEveryGradientOnceAndTheShareOfEveryValue) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes) {
    GradientReducer reducer(grid, GetParam().zero);
    const auto parameters = fakes.list();
    fill_gradients(grid, fakes, 0);
    reducer.complete(test.ctx(), parameters);
    reducer.gather_values(test.ctx(), parameters);
    std::int64_t gradients = 0, shares = 0;
    for (const Parameter* parameter : parameters) {
      if (!parameter->trainable) continue;
      gradients += parameter->grad.size_bytes();
      shares += parameter->value.size_bytes() / parameter->value.shape()[0] *
                reducer.spoken_for().of(*parameter).count();
    }
    const bool several = grid.replicas().size() > 1;
    const bool shards = several && GetParam().zero == Zero::kOptimizer;
    const auto bytes = [&](Collective kind) { return grid.replicas().counter(kind).bytes; };
    EXPECT_EQ(bytes(Collective::kReduceScatter), shards ? gradients : 0);
    EXPECT_EQ(bytes(Collective::kAllGather), shards ? shares : 0);
    EXPECT_EQ(bytes(Collective::kAllReduce), several && !shards ? gradients : 0);
  });
}

TEST_P(GradientReducerOnEveryGrid, TakesNoMemory) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes) {
    GradientReducer reducer(grid, GetParam().zero);
    fill_gradients(grid, fakes, 0);
    const auto before = test.memory().current_bytes();
    reducer.complete(test.ctx(), fakes.list());
    EXPECT_EQ(test.memory().current_bytes(), before);
  });
}

INSTANTIATE_TEST_SUITE_P(Cpu, GradientReducerOnEveryGrid,
                         testing::Values(Case{DType::kF64, Zero::kNone},
                                         Case{DType::kF64, Zero::kOptimizer},
                                         Case{DType::kF32, Zero::kOptimizer}),
                         [](const auto& c) {
                           return fmt::format("{}{}", c.param.dtype == DType::kF64 ? "F64" : "F32",
                                              c.param.zero == Zero::kNone ? "Whole" : "Sharded");
                         });

}  // namespace
}  // namespace coppice
