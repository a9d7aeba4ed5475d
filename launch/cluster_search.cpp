#include "launch/cluster_search.hpp"

#include <algorithm>
#include <map>

#include "launch/grid_check.hpp"

namespace coppice {
namespace {

GridChoice chosen(const RunConfig& config, const ModelConfig& model, const StepBatch& batch,
                  const StepPlan& plan, const ClusterProfile& cluster) {
  const ClusterStep step(config, model, batch, plan);
  GridChoice choice{.grid = config.grid};
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
    choice.recompute = recompute;
    choice.memory = step.memory(recompute);
    choice.fits = static_cast<double>(choice.memory.total()) <= cluster.usable_bytes();
    if (choice.fits) break;
  }
  choice.prediction = predict_step(step.shape(choice.recompute), cluster);
  return choice;
}

}  // namespace

std::vector<GridChoice> search_grids(const RunConfig& config, const ModelConfig& model,
                                     const StepBatch& batch, const ClusterProfile& cluster,
                                     std::int64_t ranks) {
  RunConfig on_grid = config;
  const bool shards_rows =
      config.grid.tensor == 1 || config.sequence_parallel == SequenceParallel::kYes;
  std::vector<GridChoice> choices;
  std::map<int, StepPlan> plans;  // by data ranks
  for (const std::int64_t tensor : tensor_sizes(model)) {
    if (ranks % tensor != 0) continue;
    const std::int64_t others = ranks / tensor;
    for (std::int64_t context = 1; context <= others; ++context) {
      if (others % context != 0) continue;
      on_grid.grid = {.tensor = static_cast<int>(tensor),
                      .context = static_cast<int>(context),
                      .data = static_cast<int>(others / context)};
      on_grid.sequence_parallel =
          shards_rows && tensor > 1 ? SequenceParallel::kYes : SequenceParallel::kNo;
      const int data = on_grid.grid.data;
      if (plans.count(data) == 0) plans.emplace(data, ClusterStep::plan(on_grid, model, batch));
      choices.push_back(chosen(on_grid, model, batch, plans.at(data), cluster));
    }
  }
  std::stable_sort(choices.begin(), choices.end(), [](const GridChoice& a, const GridChoice& b) {
    if (a.fits != b.fits) return a.fits;
    return a.fits ? a.prediction.step_seconds < b.prediction.step_seconds
                  : a.memory.total() < b.memory.total();
  });
  return choices;
}

}  // namespace coppice
