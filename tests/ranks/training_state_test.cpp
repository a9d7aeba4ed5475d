// The rectangles that ranks list for a checkpoint: together they are the logical tensors.
#include "rl/training_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/gradient_reducer.hpp"
#include "ranks/fake_parameters.hpp"
#include "ranks/ranks_session.hpp"

namespace coppice {
namespace {

using test::FakeGrid;
using test::FakeParameters;
using test::TestContext;
using test::value_of;

template <class Body>
void on_every_grid(Body&& body) {
  auto& session = test::ranks_session();
  for (const FakeGrid& fake : test::fake_grids(session.size()))
    for (const Zero zero : {Zero::kNone, Zero::kOptimizer}) {
      ProcessGrid grid(session, fake.sizes, {.seconds = 60},
                       std::max(1, fake.sizes.tensor / fake.heads));
      TestContext test(1);
      FakeParameters fakes(grid, fake.heads, DType::kF64, test.memory());
      fakes.fill(&Parameter::value, value_of);
      GradientReducer reducer(grid, zero);
      const auto parameters = fakes.list();
      AdamW optimizer({}, parameters, test.memory(), reducer.updated());
      SCOPED_TRACE(fmt::format("tp {} cp {} dp {} heads {} rank {}", fake.sizes.tensor,
                               fake.sizes.context, fake.sizes.data, fake.heads, session.rank()));
      body(grid, test, fakes, reducer, optimizer);
    }
}

// Calls visit(element of the logical tensor, value) for every element of a rectangle.
template <class Visit>
void for_each_element(const StateTensor& tensor, Visit&& visit) {
  const Shape &local = tensor.shard.local_shape, &offset = tensor.shard.global_offset;
  ASSERT_TRUE(tensor.local.is_contiguous() && tensor.local.shape() == local) << tensor.dataset;
  const bool matrix = local.rank() == 2;
  for (std::int64_t i = 0; i < local.numel(); ++i) {
    const std::int64_t row = matrix ? i / local[1] : i, column = matrix ? i % local[1] : 0;
    const std::int64_t width = matrix ? tensor.shard.global_shape[1] : 1;
    visit((offset[0] + row) * width + (matrix ? offset[1] : 0) + column,
          tensor.local.data<double>()[i]);
  }
}

// How often each logical element of a list of datasets is in a rectangle of any rank.
void expect_each_once(const std::vector<StateTensor>& tensors, ProcessGrid& grid,
                      TestContext& test) {
  for (const StateTensor& tensor : tensors) {
    std::vector<double> times(static_cast<std::size_t>(tensor.shard.global_shape.numel()), 0.0);
    for_each_element(tensor, [&](std::int64_t element, double) {
      times.at(static_cast<std::size_t>(element)) += 1;
    });
    grid.world().all_reduce(test.ctx().stream, host_view(times.data(), {std::ssize(times)}),
                            ReduceOp::kSum);
    for (std::size_t i = 0; i < times.size(); ++i)
      ASSERT_EQ(times[i], 1.0) << tensor.dataset << " " << i;
  }
}

// Mutations seen red: copies written too, not primary parts only; rectangles that all begin at
// their part's first row.
TEST(TrainingStateOnEveryGrid, EveryElementIsWrittenByExactlyOneRank) {
  on_every_grid([&](ProcessGrid& grid, TestContext& test, FakeParameters& fakes,
                    GradientReducer& reducer, AdamW& optimizer) {
    const auto values = parameter_tensors(fakes.list(), reducer.spoken_for());
    expect_each_once(values, grid, test);
    expect_each_once(moment_tensors(optimizer, reducer.spoken_for()), grid, test);
    for (const StateTensor& tensor : values)
      for_each_element(tensor, [&](std::int64_t element, double value) {
        ASSERT_EQ(value, value_of(tensor.dataset.substr(12), element)) << tensor.dataset;
      });
  });
}

// What a rank reads fills all that it holds: its parts of the values, its share of the moments.
// Mutations seen red: moments of a part put at the share's first rows; as above.
TEST(TrainingStateOnEveryGrid, WhatIsReadFillsAllThatARankHolds) {
  on_every_grid([&](ProcessGrid&, TestContext&, FakeParameters& fakes, GradientReducer& reducer,
                    AdamW& optimizer) {
    const auto clear = [](Tensor& tensor) {
      std::fill_n(tensor.view().bytes(), tensor.size_bytes(), std::byte{0});
    };
    for (Parameter* parameter : fakes.list()) clear(parameter->value);
    const auto read = [&](const std::vector<StateTensor>& tensors) {
      for (const StateTensor& tensor : tensors) {
        const std::string name = tensor.dataset.substr(tensor.dataset.rfind('/') + 1);
        std::int64_t i = 0;
        for_each_element(tensor, [&](std::int64_t element, double) {
          tensor.local.data<double>()[i++] = value_of(name, element);
        });
      }
    };
    read(parameter_tensors(fakes.list()));
    read(moment_tensors(optimizer));
    const auto parameters = fakes.list();
    fakes.for_each([&](Parameter& parameter, const ParameterPart& part, std::int64_t element,
                       std::int64_t row, std::int64_t column) {
      ASSERT_EQ(test::element_of(parameter.value, row, column), value_of(part.name, element));
      if (!parameter.trainable) return;
      const RowRange mine = reducer.updated().of(parameter);
      if (row < mine.begin || row >= mine.end) return;
      const auto at = std::ranges::find(parameters, &parameter) - parameters.begin();
      const AdamW::Moments& moments = optimizer.moments()[static_cast<std::size_t>(at)];
      for (const Tensor* moment : {&moments.exp_avg, &moments.exp_avg_sq})
        ASSERT_EQ(test::element_of(*moment, row - mine.begin, column), value_of(part.name, element))
            << part.name;
    });
    // Padding was not read.
    const Parameter& vocabulary = *parameters[0];
    for (std::int64_t row = vocabulary.parts[0].shard.local_shape[0]; row < vocabulary.rows();
         ++row)
      ASSERT_EQ(test::element_of(vocabulary.value, row, 0), 0.0);
  });
}

// A file's names are checked on each rank alone, and datasets made by all together in one order.
TEST(TrainingStateOnEveryGrid, EveryRankListsEveryTensorInTheSameOrder) {
  on_every_grid([&](ProcessGrid&, TestContext&, FakeParameters& fakes, GradientReducer& reducer,
                    AdamW& optimizer) {
    const auto names = [](const std::vector<StateTensor>& tensors) {
      std::vector<std::string> list;
      for (const StateTensor& tensor : tensors)
        list.push_back(fmt::format("{} {}", tensor.dataset, tensor.shard.global_shape));
      return list;
    };
    const auto values = names(parameter_tensors(fakes.list()));
    EXPECT_EQ(values, names(parameter_tensors(fakes.list(), reducer.spoken_for())));
    ASSERT_EQ(values.size(), 8u);
    EXPECT_EQ(values[3].substr(0, 13), "/parameters/q");
    const auto moments = names(moment_tensors(optimizer));
    EXPECT_EQ(moments, names(moment_tensors(optimizer, reducer.spoken_for())));
    EXPECT_EQ(moments.size(), 14u);  // two of each that learns
  });
}

}  // namespace
}  // namespace coppice
