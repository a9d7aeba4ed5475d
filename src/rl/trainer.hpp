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
#include "parallel/gradient_reducer.hpp"
#include "rl/group_source.hpp"
#include "rl/metrics.hpp"
#include "rl/step_agreement.hpp"
#include "rl/step_batch.hpp"
#include "rl/step_plan.hpp"
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

/// Parallel  collective over the grid: every rank makes one with the same arguments and calls the
///           same functions; all hold the same state and tell the same metrics
/// Effects   changes the model's parameters; writes checkpoints/ in run_dir and, on rank 0,
///           metrics.jsonl
/// Repeats   bitwise on the same grid, thread count and kind of CPU, also over a save and a restore
class Trainer {
 public:
  /// The model has gradients and is this rank's of the grid. All but the config must outlive this.
  Trainer(ExecContext& ctx, PolicyModel& model, GroupSource& source, TrainerConfig config,
          ProcessGrid& grid, TrainerEvents events = {});

  /// Goes on from a checkpoint that a trainer wrote: weights, moments, counters, place in the data.
  ///
  /// Errors    DamagedCheckpoint with every problem of the file, DataError where the groups are not
  ///           those that the run began with; then only another restore may follow
  void restore(const CheckpointReader& checkpoint);

  /// Puts back the metrics line of a restored run's last step, if the run died between its
  /// checkpoint and that line, and removes lines beyond; run() does it too.
  void settle_metrics();

  /// Steps until all is done or `stop_requested`, which is asked between steps and heeded where it
  /// is true on any rank; saves as told, and at the end whatever has changed since.
  ///
  /// Errors    Error after limits.max_bad_steps skipped steps in a row, saving nothing new; Error
  ///           where ranks are found to hold different weights (limits.parameter_check_steps)
  RunEnd run(const std::function<bool()>& stop_requested = {});

  /// One optimizer step; nothing when all groups are used up.
  std::optional<StepMetrics> step();
  void save();

  /// Attempted steps so far.
  std::int64_t steps() const { return state_.step; }
  /// Of the newest checkpoint of this run; 0 where there is none.
  std::int64_t saved_step() const { return saved_step_; }
  /// Steps of the whole run, where the source knows.
  std::optional<std::int64_t> planned_steps() const;
  const AdamW& optimizer() const { return optimizer_; }

 private:
  bool take_batch();
  void compute_old_logprobs(StepMetrics& metrics);
  bool run_step(StepMetrics& metrics);
  StepPlan plan_of_batch() const;
  std::vector<Microbatch> mine(const StepPlan& plan) const;
  void put_plan(const StepPlan& plan, StepMetrics& metrics);
  void run_microbatches(const StepPlan& plan, StepMetrics& metrics);
  bool update_weights(const LossSums& sums, StepMetrics& metrics);
  void count_step(bool applied, StepMetrics& metrics);
  void finish_batch();
  bool limit_reached() const;
  bool check_is_due() const;
  bool is_first_rank() { return grid_.world().rank() == 0; }
  void on_first_rank(const std::function<void()>& body);

  ExecContext& ctx_;
  PolicyModel& model_;
  GroupSource& source_;
  TrainerConfig config_;
  ProcessGrid& grid_;
  TrainerEvents events_;
  std::vector<Parameter*> parameters_, by_backward_;
  RowPlace rows_;
  GradientReducer reducer_;
  AdamW optimizer_;
  TrafficMeter traffic_;
  TrainerState state_;
  std::optional<StepBatch> batch_;  // in flight, between updates with the same groups
  std::optional<MetricsFile> metrics_file_;
  std::int64_t saved_step_ = 0;
  bool has_weights_ = true;  // not after a restore that failed
};

}  // namespace coppice
