#pragma once
// The training loop: takes groups, plans, runs the model, updates the weights, tells what happened,
// saves. It knows no file of rollouts, no config file and no terminal; those are launch/'s.
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/exec_context.hpp"
#include "model/policy_model.hpp"
#include "optim/adamw.hpp"
#include "rl/group_source.hpp"
#include "rl/metrics.hpp"
#include "rl/step_batch.hpp"
#include "rl/trainer_config.hpp"
#include "rl/training_state.hpp"

namespace coppice {

/// What the trainer tells while it runs; either may be empty.
struct TrainerEvents {
  std::function<void(const StepMetrics&)> step_done;
  std::function<void(std::int64_t step)> checkpoint_saved;
};

enum class RunEnd {
  kDone,     ///< all groups are used up, or limits.max_steps is reached
  kStopped,  ///< stop was requested
};

/// Effects   changes the model's parameters; writes metrics.jsonl and checkpoints/ in run_dir
/// Repeats   bitwise on the same thread count and kind of CPU, also over a save and a restore
class Trainer {
 public:
  /// The model has gradients. All but the config must outlive this.
  Trainer(ExecContext& ctx, PolicyModel& model, GroupSource& source, TrainerConfig config,
          TrainerEvents events = {});

  /// Goes on from a checkpoint that a trainer wrote: weights, moments, counters, place in the data.
  ///
  /// Errors    DataError with every problem of the file
  void restore(const CheckpointReader& checkpoint);

  /// Puts back the metrics line of a restored run's last step, if the run died between its
  /// checkpoint and that line, and removes lines beyond; run() does it too.
  void settle_metrics();

  /// Steps until all is done or `stop_requested`, which is asked between steps; saves as told, and
  /// at the end whatever has changed since.
  ///
  /// Errors    Error after limits.max_bad_steps skipped steps in a row, saving nothing new
  RunEnd run(const std::function<bool()>& stop_requested = {});

  /// One optimizer step; nothing when all groups are used up.
  std::optional<StepMetrics> step();
  void save();

  /// Attempted steps so far.
  std::int64_t steps() const { return state_.step; }
  /// Steps of the whole run, where the source knows.
  std::optional<std::int64_t> planned_steps() const;
  const AdamW& optimizer() const { return optimizer_; }

 private:
  bool take_batch();
  void compute_old_logprobs(StepMetrics& metrics);
  bool run_step(StepMetrics& metrics);
  void run_microbatches(const MicrobatchPlan& plan, StepMetrics& metrics);
  bool update_weights(const LossSums& sums, StepMetrics& metrics);
  void count_step(bool applied, StepMetrics& metrics);
  void finish_batch();
  bool limit_reached() const;

  ExecContext& ctx_;
  PolicyModel& model_;
  GroupSource& source_;
  TrainerConfig config_;
  TrainerEvents events_;
  std::vector<Parameter*> parameters_;
  AdamW optimizer_;
  TrainerState state_;
  std::optional<StepBatch> batch_;  // in flight, between updates with the same groups
  std::optional<MetricsFile> metrics_file_;
  std::int64_t saved_step_ = 0;
};

}  // namespace coppice
