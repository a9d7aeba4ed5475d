#pragma once
// The shapes of a step as cluster_model takes them: which rank is waited for, and what it runs.
// Ranks are not all packed: the data rank that costs most stands for the others, in each of its
// micro-batches the context rank that costs most, and of many micro-batches some stand for the
// rest. So a step on thousands of ranks is shaped in a fraction of a second.
#include <vector>

#include "launch/cluster_model.hpp"
#include "launch/run_config.hpp"
#include "model/memory_plan.hpp"
#include "rl/step_batch.hpp"
#include "rl/step_plan.hpp"

namespace coppice {

/// A step on one grid; what does not depend on recomputation is made once.
///
/// Repeats   a function of its arguments only
/// Oracle    tests/launch/cluster_shape_test.cpp, the plan of all ranks
class ClusterStep {
 public:
  /// Micro-batches of a rank that are looked at one by one; more are represented by as many.
  static constexpr std::size_t kMostPacked = 16;

  /// Of config, its grid, device, precision and threads are what counts here; all outlive this.
  ClusterStep(const RunConfig& config, const ModelConfig& model, const StepBatch& batch)
      : ClusterStep(config, model, batch, plan(config, model, batch)) {}
  /// With a plan made before: it depends on batching and the number of data ranks only.
  ClusterStep(const RunConfig& config, const ModelConfig& model, const StepBatch& batch,
              const StepPlan& plan);
  static StepPlan plan(const RunConfig& config, const ModelConfig& model, const StepBatch& batch);

  StepShape shape(Recompute recompute) const;
  /// Of the ranks that stand for the others.
  MemoryPlan memory(Recompute recompute) const;
  std::int64_t microbatches() const { return microbatches_; }  ///< of each data rank

 private:
  struct Packed {
    PackedBatch batch;
    double count;
  };
  /// No replica's share of the optimizer's state has more rows.
  int last_replica() const { return config_.grid.context * config_.grid.data - 1; }
  void pack_representatives(const StepBatch& batch, const StepPlan& plan);

  const RunConfig& config_;
  const ModelConfig& model_;
  std::int64_t loss_tokens_ = 0, microbatches_ = 0;
  bool scores_old_ = false;
  double executed_flops_ = 0;
  std::vector<Packed> packed_;
};

/// The two steps in one, for a run config as it stands: what its step of this batch takes.
///
/// Errors    as predict_step
StepPrediction predict_step(const RunConfig& config, const ModelConfig& model,
                            const StepBatch& batch, const ClusterProfile& cluster);

/// Makes the config that of a run on the cluster's devices: device, precision and, on a CPU,
/// threads.
void move_to(const ClusterProfile& cluster, RunConfig& config);

}  // namespace coppice
