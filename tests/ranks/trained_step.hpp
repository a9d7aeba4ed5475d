#pragma once
// One training step in bf16 of several ranks on CUDA devices, with axes of either kind, for tests
// that compare such steps.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/build_config.hpp"
#include "ranks/grid_run.hpp"
#include "rl/naive_step.hpp"

namespace coppice::test {

inline std::vector<TinyCase> step_cases() {
  return {{"Llama", false, 2, 1, 64, kStepVocabulary, 64},  // both tensor ranks hold its one k head
          {"Qwen2", true, 2, 2, 64, kStepVocabulary, 64},
          {"Qwen3", false, 2, 1, 64, kStepVocabulary, 64}};
}

struct Trained {
  NaiveStep step;
  Gradients before, after;        // weights
  std::set<std::string> started;  // collectives that ran under compute: "tensor all_gather"
};

// Every rank's values are the roundings of the masters of the ranks that speak for them: so all
// that hold the same have the same bits, and what checkpoints hold is what the ranks compute with.
inline void expect_values_of(GridRun& run, const Gradients& weights) {
  for (Parameter* parameter : run.model().parameters()) {
    for (const ParameterPart& part : parameter->parts) {
      const auto values = values_of(rows_of(part, parameter->value));
      const auto whole = rounded(weights.at("/parameters/" + part.name), DType::kBF16);
      std::vector<double> expected(values.size());
      GridRun::for_each_element(part.shard, [&](std::int64_t element, std::int64_t i) {
        expected[static_cast<std::size_t>(i)] = whole[static_cast<std::size_t>(element)];
      });
      EXPECT_EQ(values, expected) << part.name;
    }
  }
}

inline Trained train(const GridCase& which, const TinyCase& tiny, const std::vector<Group>& groups,
                     GridDevice::Axes axes, bool overlap = true) {
  const bool shared = build::kEmulatedDevice || axes == GridDevice::Axes::kStaged;
  const Device device{DeviceKind::kCuda, shared ? 0 : ranks_session().local_rank()};
  const auto grid = make_grid(which, config_of(tiny), {device, axes});
  grid->overlap(overlap);
  const SharedDirectory directory(grid->world());
  GridRun run(*grid, which, groups, step_config(Sharing::kGrouped),
              {.dtype = DType::kBF16, .device = device, .tiny = tiny}, directory.path());
  Trained result;
  result.before = run.named_weights();
  Trace trace;
  grid->trace_to(&trace);
  const auto metrics = run.trainer().step();
  grid->trace_to(nullptr);
  for (const TraceEvent& event : trace.events()) {
    if (event.kind == TraceKind::kWait)
      result.started.insert(std::string(event.facts.axis) + " " + event.name);
  }
  result.step = {metrics.value().loss.value(), run.gradients()};
  result.after = run.named_weights();
  EXPECT_NE(result.after, result.before);
  expect_values_of(run, result.after);
  return result;
}

}  // namespace coppice::test
