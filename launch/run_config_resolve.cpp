#include "launch/run_config_resolve.hpp"

#include <algorithm>
#include <array>

#include "configs/run_config.pb.h"
#include "launch/config_value.hpp"
#include "launch/device_choice.hpp"
#include "launch/grid_check.hpp"
#include "launch/host.hpp"

namespace coppice {
namespace {

using config::Advantage;
using config::Loss;
using config::Numerics;
using config::Optimizer;

LossKind kind_of(Loss::Kind kind) {
  switch (kind) {
    case Loss::DR_GRPO:
      return LossKind::kDrGrpo;
    case Loss::DAPO:
      return LossKind::kDapo;
    case Loss::SFT:
      return LossKind::kSft;
    case Loss::GRPO:
      break;
  }
  return LossKind::kGrpo;
}

// One row per aggregation: the two enums in step.
constexpr std::array kAggregations = {
    std::pair{Loss::TOKEN_MEAN, Aggregation::kTokenMean},
    std::pair{Loss::SEQUENCE_MEAN_TOKEN_MEAN, Aggregation::kSequenceMeanTokenMean},
    std::pair{Loss::SEQUENCE_MEAN_TOKEN_SUM_NORM, Aggregation::kSequenceMeanTokenSumNorm}};

Aggregation aggregation_of(Loss::Aggregation aggregation) {
  for (const auto& [proto, plain] : kAggregations)
    if (proto == aggregation) return plain;
  return Aggregation::kTokenMean;
}

Loss::Aggregation proto_of(Aggregation aggregation) {
  for (const auto& [proto, plain] : kAggregations)
    if (plain == aggregation) return proto;
  return Loss::TOKEN_MEAN;
}

Sharing sharing_of(config::Batching::Sharing sharing) {
  if (sharing == config::Batching::GROUPED) return Sharing::kGrouped;
  return sharing == config::Batching::REPEATED ? Sharing::kRepeated : Sharing::kAuto;
}

Recompute recompute_of(Numerics::Recompute recompute) {
  if (recompute == Numerics::SELECTIVE) return Recompute::kSelective;
  return recompute == Numerics::BLOCK ? Recompute::kBlock : Recompute::kNone;
}

LossConfig loss_of(const Loss& loss) {
  LossConfig plain;
  plain.kind = kind_of(loss.kind());
  plain.clip_low = loss.clip_low();
  plain.clip_high = loss.clip_high();
  plain.dual_clip = loss.dual_clip();
  plain.kl_estimator = loss.kl_estimator() == Loss::K1   ? KlEstimator::kK1
                       : loss.kl_estimator() == Loss::K2 ? KlEstimator::kK2
                                                         : KlEstimator::kK3;
  plain.kl_coef = loss.kl_coef();
  plain.entropy_coef = loss.entropy_coef();
  plain.aggregation = aggregation_of(loss.aggregation());
  plain.temperature = loss.temperature();
  plain.updates_per_batch = loss.updates_per_batch();
  plain.max_response_length = loss.max_response_length();
  plain.mask_truncated = loss.mask_truncated();
  return plain;
}

OptimizerConfig optimizer_of(const Optimizer& optimizer) {
  OptimizerConfig plain;
  plain.adamw = {.beta1 = optimizer.beta1(),
                 .beta2 = optimizer.beta2(),
                 .epsilon = optimizer.epsilon(),
                 .weight_decay = optimizer.weight_decay()};
  plain.max_grad_norm = optimizer.max_grad_norm();
  plain.schedule = {.kind = optimizer.schedule() == Optimizer::COSINE   ? LrScheduleKind::kCosine
                            : optimizer.schedule() == Optimizer::LINEAR ? LrScheduleKind::kLinear
                                                                        : LrScheduleKind::kConstant,
                    .learning_rate = optimizer.learning_rate(),
                    .warmup_steps = optimizer.warmup_steps(),
                    .total_steps = optimizer.total_steps()};
  return plain;
}

}  // namespace

void resolve_run_config(config::RunConfig& config, RunConfigUse use, const JobSize& job) {
  Loss& loss = *config.mutable_loss();
  Advantage& advantage = *config.mutable_advantage();
  const LossTraits& traits = traits_of(kind_of(loss.kind()));
  if (!loss.has_clip_high()) loss.set_clip_high(traits.clip_high);
  if (!loss.has_aggregation()) loss.set_aggregation(proto_of(traits.aggregation));
  if (!advantage.has_normalization())
    advantage.set_normalization(
        traits.normalization == AdvantageNormalization::kStd ? Advantage::STD : Advantage::NONE);
  set_defaults(config);
  if (!traits.uses_advantages) {
    loss.clear_clip_low();
    loss.clear_clip_high();
    loss.clear_dual_clip();
    config.clear_advantage();
  }
  const std::int64_t ranks = use == RunConfigUse::kPlan ? 0 : job.ranks;
  config.mutable_parallel()->set_data(data_ranks(config.parallel(), ranks));
  if (!config.parallel().has_sequence_parallel())
    config.mutable_parallel()->set_sequence_parallel(config.parallel().tensor() > 1);
  const bool on_cuda = chosen_device(config, use, job) == DeviceKind::kCuda;
  config.set_device(on_cuda ? config::RunConfig::CUDA : config::RunConfig::CPU);
  if (!config.numerics().has_precision())
    config.mutable_numerics()->set_precision(on_cuda ? Numerics::BF16 : Numerics::F32);
  if (config.has_threads_per_rank()) return;
  const auto& grid = config.parallel();
  config.set_threads_per_rank(
      use == RunConfigUse::kPlan
          ? std::max<std::int64_t>(
                1, available_cores() / (grid.tensor() * grid.context() * grid.data()))
          : job.default_threads);
}

RunConfig plain_values(const config::RunConfig& config) {
  RunConfig plain;
  plain.model_checkpoint = config.model().checkpoint();
  plain.model_hf = config.model().hf();
  plain.rollouts = config.data().rollouts();
  plain.epochs = config.data().epochs();
  plain.shuffle = config.data().shuffle();
  plain.device = config.device() == config::RunConfig::CUDA ? DeviceKind::kCuda : DeviceKind::kCpu;
  plain.precision = config.numerics().precision() == Numerics::F64    ? DType::kF64
                    : config.numerics().precision() == Numerics::BF16 ? DType::kBF16
                                                                      : DType::kF32;
  const config::Parallel& parallel = config.parallel();
  plain.grid = {.tensor = static_cast<int>(parallel.tensor()),
                .context = static_cast<int>(parallel.context()),
                .data = static_cast<int>(parallel.data())};
  plain.overlap = parallel.overlap();
  if (parallel.communicator() == config::Parallel::STAGED) plain.axes = GridDevice::Axes::kStaged;
  plain.sequence_parallel = parallel.sequence_parallel() && parallel.tensor() > 1
                                ? SequenceParallel::kYes
                                : SequenceParallel::kNo;
  plain.watchdog_seconds = static_cast<double>(config.limits().watchdog_seconds());
  plain.threads_per_rank = static_cast<int>(config.threads_per_rank());
  plain.resume = config.checkpoint().resume() == config::Checkpoint::AUTO;

  TrainerConfig& trainer = plain.trainer;
  trainer.run_dir = config.run_dir();
  trainer.seed = config.seed();
  trainer.groups_per_step = config.data().groups_per_step();
  trainer.loss = loss_of(config.loss());
  trainer.advantage = {.normalization = config.advantage().normalization() == Advantage::STD
                                            ? AdvantageNormalization::kStd
                                            : AdvantageNormalization::kNone,
                       .epsilon = config.advantage().epsilon(),
                       .drop_zero_std_groups = config.advantage().drop_zero_std_groups()};
  trainer.batching = {.sharing = sharing_of(config.batching().sharing()),
                      .max_rows_per_microbatch = config.batching().max_rows_per_microbatch()};
  trainer.optimizer = optimizer_of(config.optimizer());
  trainer.recompute = recompute_of(config.numerics().recompute());
  trainer.zero =
      config.parallel().zero() == config::Parallel::NONE ? Zero::kNone : Zero::kOptimizer;
  trainer.checkpoint = {.every_steps = config.checkpoint().every_steps(),
                        .keep_last = config.checkpoint().keep_last(),
                        .keep_precision = config.checkpoint().keep_precision(),
                        .save_at_end = config.checkpoint().save_at_end()};
  trainer.limits = {.max_steps = config.limits().max_steps(),
                    .max_bad_steps = config.limits().max_bad_steps(),
                    .parameter_check_steps = config.limits().parameter_check_steps()};
  trainer.run_config_textproto = config_text(config);
  return plain;
}

}  // namespace coppice
