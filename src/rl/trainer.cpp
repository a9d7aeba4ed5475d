#include "rl/trainer.hpp"

#include <cmath>

#include "checkpoint/checkpoint_directory.hpp"
#include "core/stopwatch.hpp"
#include "optim/grad_norm.hpp"
#include "rl/scorer.hpp"

namespace coppice {
namespace {

constexpr const char* kOldLogprobs = "old_logprobs";

void put_figures(const BatchFigures& figures, bool uses_advantages, StepMetrics& metrics) {
  metrics.groups = figures.groups;
  metrics.responses = figures.responses;
  if (figures.responses > 0) {
    const auto responses = static_cast<double>(figures.responses);
    metrics.response_length_mean = static_cast<double>(figures.response_ids) / responses;
    metrics.truncated_fraction = static_cast<double>(figures.truncated_responses) / responses;
  }
  if (!uses_advantages) return;
  metrics.zero_std_groups = figures.zero_std_groups;
  metrics.reward_mean = figures.reward_mean;
  metrics.reward_std = figures.reward_std;
  metrics.advantage_abs_mean = figures.advantage_abs_mean;
}

void put_sums(const LossSums& sums, bool uses_advantages, StepMetrics& metrics) {
  const auto tokens = static_cast<double>(sums.tokens);
  metrics.loss = sums.loss;
  metrics.policy_loss = sums.policy_loss;
  metrics.entropy = sums.entropy / tokens;
  if (sums.kl_tokens == sums.tokens) metrics.kl = sums.kl / tokens;
  if (!uses_advantages) return;
  metrics.ratio_mean = sums.ratio / tokens;
  metrics.ratio_max = sums.ratio_max;
  metrics.clip_fraction = static_cast<double>(sums.clipped) / tokens;
}

}  // namespace

Trainer::Trainer(ExecContext& ctx, PolicyModel& model, GroupSource& source, TrainerConfig config,
                 TrainerEvents events)
    : ctx_(ctx),
      model_(model),
      source_(source),
      config_(std::move(config)),
      events_(std::move(events)),
      parameters_(model.parameters()),
      optimizer_(config_.optimizer.adamw, parameters_, ctx.memory),
      metrics_file_(std::in_place, config_.run_dir / "metrics.jsonl", 0, "") {
  state_.seed = config_.seed;
  auto& total_steps = config_.optimizer.schedule.total_steps;
  if (total_steps == 0)
    total_steps = saturating_product(source.batches(config_.groups_per_step).value_or(0),
                                     config_.loss.updates_per_batch);
}

std::optional<StepMetrics> Trainer::step() {
  Stopwatch clock(ctx_.stream);
  StepMetrics metrics;
  if (!take_batch()) return std::nullopt;
  metrics.seconds.plan = clock.lap();
  compute_old_logprobs(metrics);
  clock.lap();
  const bool applied = run_step(metrics);
  metrics.step_seconds = metrics.seconds.plan + clock.lap();
  finish_batch();
  count_step(applied, metrics);
  return metrics;
}

bool Trainer::take_batch() {
  if (batch_) return true;
  state_.position = source_.position();
  std::vector<Group> groups = source_.take(config_.groups_per_step);
  if (groups.empty()) return false;
  batch_.emplace(std::move(groups), config_.loss, config_.advantage);
  return true;
}

void Trainer::finish_batch() {
  if (++state_.update < config_.loss.updates_per_batch) return;
  state_.update = 0;
  state_.position = source_.position();
  batch_.reset();
}

// With one update per batch the current log-probs are the old ones, and the ratio exactly 1; with
// more, those before the first update are, which takes a pass of its own.
void Trainer::compute_old_logprobs(StepMetrics& metrics) {
  if (!batch_->needs_old_logprobs()) return;
  Stopwatch clock(ctx_.stream);
  const MicrobatchPlan plan = plan_microbatches(batch_->groups(), config_.batching,
                                                EdgeTokens::kInLoss, packing_cost(model_.config()));
  for (const Microbatch& microbatch : plan.microbatches) {
    const PackedBatch packed = pack(batch_->groups(), microbatch, EdgeTokens::kInLoss);
    std::vector<double> logprobs(packed.edges.size()), entropies(packed.edges.size());
    model_.score(ctx_, packed, config_.loss.temperature, logprobs, entropies);
    batch_->keep(packed, logprobs, entropies);
  }
  batch_->adopt_current_as_old();
  metrics.seconds.old_logprobs = clock.lap();
}

// Plan, forward, log-probs, loss, backward, clip, update. False: the step is skipped and nothing of
// the model or the optimizer has changed.
bool Trainer::run_step(StepMetrics& metrics) {
  const bool uses_advantages = traits_of(config_.loss.kind).uses_advantages;
  put_figures(batch_->figures(), uses_advantages, metrics);
  metrics.loss_tokens = batch_->totals().tokens;
  if (metrics.loss_tokens == 0) return false;

  Stopwatch clock(ctx_.stream);
  const MicrobatchPlan plan = plan_microbatches(batch_->groups(), config_.batching,
                                                EdgeTokens::kInLoss, packing_cost(model_.config()));
  metrics.seconds.plan += clock.lap();
  run_microbatches(plan, metrics);
  const LossSums sums = batch_->sums();
  put_sums(sums, uses_advantages, metrics);
  return update_weights(sums, metrics);
}

void Trainer::run_microbatches(const MicrobatchPlan& plan, StepMetrics& metrics) {
  PackedWork work;
  PhaseSeconds seconds;
  model_.zero_gradients(ctx_);
  for (const Microbatch& microbatch : plan.microbatches) {
    Stopwatch clock(ctx_.stream);
    const PackedBatch packed = pack(batch_->groups(), microbatch, EdgeTokens::kInLoss);
    std::vector<double> logprobs(packed.edges.size()), entropies(packed.edges.size());
    metrics.seconds.plan += clock.lap();
    model_.forward_backward(ctx_, packed, config_.recompute, config_.loss.temperature,
                            batch_->coefficients(packed), logprobs, entropies, &seconds);
    batch_->keep(packed, logprobs, entropies);
    add(work, work_of(packed));
  }
  metrics.rows = work.rows;
  metrics.visible_pairs = work.visible_pairs;
  metrics.edge_rows = work.edge_rows;
  metrics.logical_rows = batch_->figures().logical_rows;
  metrics.executed_flops = executed_flops(model_.config(), work);
  metrics.microbatches = std::ssize(plan.microbatches);
  metrics.sharing = plan.sharing_name();
  metrics.seconds.forward = seconds.forward;
  metrics.seconds.backward = seconds.backward;
  state_.fallbacks += plan.fallbacks;
}

bool Trainer::update_weights(const LossSums& sums, StepMetrics& metrics) {
  Stopwatch clock(ctx_.stream);
  const double norm = global_grad_norm(ctx_, parameters_);
  metrics.grad_norm = norm;
  const bool applied = std::isfinite(sums.loss) && std::isfinite(norm);
  if (applied) {
    const double rate = config_.optimizer.schedule.at(optimizer_.applied_steps() + 1);
    optimizer_.step(ctx_, rate, clip_scale(norm, config_.optimizer.max_grad_norm));
    metrics.learning_rate = rate;
  }
  metrics.seconds.optimizer = clock.lap();
  return applied;
}

void Trainer::count_step(bool applied, StepMetrics& metrics) {
  metrics.step = ++state_.step;
  metrics.skipped = !applied;
  state_.bad_steps += !applied;
  state_.bad_in_a_row = applied ? 0 : state_.bad_in_a_row + 1;
  metrics.bad_steps = state_.bad_steps;
  metrics.fallbacks = state_.fallbacks;
  metrics.peak_memory_bytes = ctx_.memory.peak_bytes();
  metrics.peak_resident_bytes = peak_resident_bytes();
  state_.metrics_line = to_json(metrics);
}

bool Trainer::limit_reached() const {
  return config_.limits.max_steps > 0 && state_.step >= config_.limits.max_steps;
}

std::optional<std::int64_t> Trainer::planned_steps() const {
  const auto batches = source_.batches(config_.groups_per_step);
  if (!batches) return std::nullopt;
  const std::int64_t all = saturating_product(*batches, config_.loss.updates_per_batch);
  return config_.limits.max_steps > 0 ? std::min(all, config_.limits.max_steps) : all;
}

void Trainer::settle_metrics() {
  if (state_.step > 0) metrics_file_->settle();
}

RunEnd Trainer::run(const std::function<bool()>& stop_requested) {
  const auto stopped = [&] { return stop_requested && stop_requested(); };
  const auto& [every_steps, keep_last, keep_precision] = config_.checkpoint;
  // Before the next checkpoint, which holds the line of its own step only.
  settle_metrics();
  bool stop = stopped();
  while (!stop && !limit_reached()) {
    std::optional<StepMetrics> metrics = step();
    if (!metrics) break;
    const bool give_up = state_.bad_in_a_row >= config_.limits.max_bad_steps;
    stop = stopped();
    const bool last = stop || limit_reached() || state_.step == planned_steps();
    if (!give_up && (last || (every_steps > 0 && state_.step % every_steps == 0))) {
      Stopwatch clock(ctx_.stream);
      save();
      metrics->seconds.checkpoint = clock.lap();
    }
    metrics_file_->write(to_json(*metrics));
    if (events_.step_done) events_.step_done(*metrics);
    if (give_up)
      throw Error(fmt::format(
          "{} steps in a row were skipped, the last being step {} (no learning token, or a loss or "
          "gradient norm that is not finite). Nothing new was saved; look at the metrics and the "
          "rollouts, or raise limits.max_bad_steps.",
          state_.bad_in_a_row, state_.step));
  }
  if (state_.step > saved_step_) save();
  return stop ? RunEnd::kStopped : RunEnd::kDone;
}

void Trainer::save() {
  CheckpointHeader header{.kind = CheckpointKind::kCheckpoint,
                          .step = state_.step,
                          .optimizer_step = optimizer_.applied_steps(),
                          .program_version = std::string(build::kVersion),
                          .model_config_json = model_.config().json,
                          .run_config_textproto = config_.run_config_textproto,
                          .trainer_json = to_json(state_),
                          .trainer_arrays = {},
                          .tokenizer = config_.tokenizer};
  // What was computed for the batch in flight cannot be computed again: the weights have moved on.
  if (state_.update > 0 && batch_->has_old_logprobs())
    header.trainer_arrays.push_back({kOldLogprobs, batch_->old_logprobs()});
  std::vector<StateTensor> tensors = parameter_tensors(parameters_);
  const std::vector<StateTensor> moments = moment_tensors(optimizer_);
  tensors.insert(tensors.end(), moments.begin(), moments.end());
  const auto directory = config_.run_dir / "checkpoints";
  std::filesystem::create_directories(directory);
  save_checkpoint(directory / checkpoint_file_name(state_.step), header, tensors,
                  config_.checkpoint.keep_precision);
  remove_old_checkpoints(directory, config_.checkpoint.keep_last);
  saved_step_ = state_.step;
  if (events_.checkpoint_saved) events_.checkpoint_saved(state_.step);
}

void Trainer::restore(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.header();
  const TrainerState state =
      trainer_state_from_json(header.trainer_json, checkpoint.path().string());
  std::vector<StateTensor> tensors = parameter_tensors(parameters_);
  const std::vector<StateTensor> moments = moment_tensors(optimizer_);
  tensors.insert(tensors.end(), moments.begin(), moments.end());
  checkpoint.read(tensors);
  optimizer_.set_applied_steps(header.optimizer_step);

  state_ = state;
  source_.set_position(state.position);
  batch_.reset();
  if (state.update > 0) {
    take_batch();
    for (const TrainerArray& array : header.trainer_arrays)
      if (array.name == kOldLogprobs) batch_->set_old_logprobs(array.values);
    if (batch_->needs_old_logprobs())
      throw DataError(
          {fmt::format("{}: the old log-probs of the batch in flight are missing (the "
                       "weights have moved on). Resume from another checkpoint.",
                       checkpoint.path().string())});
  }
  saved_step_ = state.step;
  metrics_file_.emplace(config_.run_dir / "metrics.jsonl", state.step, state.metrics_line);
}

}  // namespace coppice
