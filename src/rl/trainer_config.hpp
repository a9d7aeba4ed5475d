#pragma once
// Everything a training run is told, as plain values. Where they come from (a config file, flags)
// and what may not go together is launch/'s business.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "layers/transformer_block.hpp"
#include "model/model_config.hpp"
#include "optim/adamw.hpp"
#include "optim/lr_schedule.hpp"
#include "parallel/gradient_reducer.hpp"
#include "rl/loss_config.hpp"
#include "rl/microbatch_planner.hpp"
#include "rl/rollouts.hpp"

namespace coppice {

struct OptimizerConfig {
  AdamWConfig adamw;
  LrSchedule schedule;         ///< total_steps 0: those of the whole source
  double max_grad_norm = 1.0;  ///< 0: no clipping
};

struct CheckpointingConfig {
  std::int64_t every_steps = 0;  ///< 0: only at the end
  std::int64_t keep_last = 2;
  bool keep_precision = false;
  bool save_at_end = true;  ///< false: a run that comes to its end leaves what it saved before
};

struct LimitsConfig {
  std::int64_t max_steps = 0;  ///< of the whole run, resumed steps included; 0: all
  std::int64_t max_bad_steps = 10;
  std::int64_t parameter_check_steps = 0;  ///< how often ranks compare their weights; 0: never
};

struct TrainerConfig {
  std::filesystem::path run_dir;  ///< exists; receives metrics.jsonl and checkpoints/
  std::uint64_t seed = 1;
  std::int64_t groups_per_step = 8;
  LossConfig loss;
  AdvantageConfig advantage;
  BatchingConfig batching;
  OptimizerConfig optimizer;
  Recompute recompute = Recompute::kNone;
  Zero zero = Zero::kOptimizer;
  CheckpointingConfig checkpoint;
  LimitsConfig limits;

  // Travel along into every checkpoint.
  std::string run_config_textproto;
  std::vector<AttachedFile> tokenizer;
};

/// What training with `loss` needs of a rollouts file.
RolloutNeeds training_needs(const LossConfig& loss, const ModelConfig& model);
/// What scoring needs.
RolloutNeeds scoring_needs(const ModelConfig& model);

}  // namespace coppice
