#include "rl/trainer.hpp"

#include <cmath>

#include "core/stopwatch.hpp"
#include "optim/grad_norm.hpp"
#include "rl/parameter_check.hpp"
#include "rl/phase.hpp"
#include "rl/scorer.hpp"

namespace coppice {
namespace {

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
                 ProcessGrid& grid, TrainerEvents events)
    : ctx_(ctx),
      model_(model),
      source_(source),
      config_(std::move(config)),
      grid_(grid),
      events_(std::move(events)),
      parameters_(model.parameters()),
      by_backward_(model.parameters_by_backward()),
      rows_(row_place(model.config(), grid.parallel())),
      reducer_(grid, config_.zero),
      optimizer_(config_.optimizer.adamw, parameters_, ctx.memory, reducer_.updated()),
      traffic_(grid) {
  if (is_first_rank()) metrics_file_.emplace(config_.run_dir / "metrics.jsonl", 0, "");
  state_.seed = config_.seed;
  auto& total_steps = config_.optimizer.schedule.total_steps;
  if (total_steps == 0)
    total_steps = saturating_product(source.batches(config_.groups_per_step).value_or(0),
                                     config_.loss.updates_per_batch);
}

std::optional<StepMetrics> Trainer::step() {
  COPPICE_CHECK(has_weights_, "a step after a restore that failed");
  grid_.activity().step = state_.step + 1;
  TraceScope scope(ctx_.trace, TraceKind::kStep, "step", {.index = state_.step + 1});
  Stopwatch clock(ctx_.stream);
  StepMetrics metrics;
  const bool taken = [&] {
    const Phase phase(ctx_, grid_.activity(), "plan", metrics.seconds.plan);
    return take_batch();
  }();
  if (!taken) {
    scope.forget();
    return std::nullopt;
  }
  metrics.step_seconds = clock.lap();
  compute_old_logprobs(metrics);
  clock.lap();
  traffic_.restart();
  const bool applied = run_step(metrics);
  metrics.step_seconds += clock.lap();
  traffic_.put(ctx_, metrics);
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

// Made by every rank alike.
StepPlan Trainer::plan_of_batch() const {
  return plan_step(batch_->groups(), config_.batching, EdgeTokens::kInLoss,
                   packing_cost(model_.config()), grid_.sizes().data, rows_);
}

// What this rank runs: the empty micro-batches that even out the data ranks are not.
std::vector<Microbatch> Trainer::mine(const StepPlan& plan) const {
  std::vector<Microbatch> chosen;
  const auto rank = static_cast<std::size_t>(grid_.coordinates().dp_rank);
  for (const Microbatch& microbatch : plan.ranks[rank].microbatches)
    if (!microbatch.empty()) chosen.push_back(microbatch);
  return chosen;
}

void Trainer::put_plan(const StepPlan& plan, StepMetrics& metrics) {
  metrics.rows = plan.work.rows;
  metrics.visible_pairs = plan.work.visible_pairs;
  metrics.edge_rows = plan.work.edge_rows;
  metrics.logical_rows = batch_->figures().logical_rows;
  metrics.alignment_rows = plan.alignment_rows;
  metrics.executed_flops = executed_flops(model_.config(), plan.work);
  metrics.microbatches = plan.microbatches();
  metrics.sharing = plan.sharing_name();
  state_.fallbacks += plan.fallbacks;
}

// With one update per batch the current log-probs are the old ones, and the ratio exactly 1; with
// more, those before the first update are, which takes a pass of its own.
void Trainer::compute_old_logprobs(StepMetrics& metrics) {
  if (!batch_->needs_old_logprobs()) return;
  const Phase phase(ctx_, grid_.activity(), "old_logprobs", metrics.seconds.old_logprobs);
  std::int64_t index = 0;
  for (const Microbatch& microbatch : mine(plan_of_batch())) {
    const TraceScope scope(ctx_.trace, TraceKind::kMicrobatch, "microbatch", {.index = index++});
    const PackedBatch packed = pack(batch_->groups(), microbatch, EdgeTokens::kInLoss, rows_);
    std::vector<double> logprobs(packed.edges.size()), entropies(packed.edges.size());
    model_.score(ctx_, packed, config_.loss.temperature, logprobs, entropies);
    batch_->keep(packed, logprobs, entropies);
  }
  batch_->gather(ctx_.stream, grid_.replicas());
  batch_->adopt_current_as_old();
}

// Plan, forward, log-probs, loss, backward, clip, update. False: the step is skipped and nothing of
// the model or the optimizer has changed.
bool Trainer::run_step(StepMetrics& metrics) {
  const bool uses_advantages = traits_of(config_.loss.kind).uses_advantages;
  put_figures(batch_->figures(), uses_advantages, metrics);
  metrics.loss_tokens = batch_->totals().tokens;
  if (metrics.loss_tokens == 0) return false;

  const StepPlan plan = [&] {
    const Phase phase(ctx_, grid_.activity(), "plan", metrics.seconds.plan);
    return plan_of_batch();
  }();
  put_plan(plan, metrics);
  run_microbatches(plan, metrics);
  const LossSums sums = batch_->sums();
  put_sums(sums, uses_advantages, metrics);
  return update_weights(sums, metrics);
}

void Trainer::run_microbatches(const StepPlan& plan, StepMetrics& metrics) {
  PhaseSeconds seconds;
  model_.zero_gradients(ctx_);
  // In the last micro-batch gradients end layer by layer: their sums run under what is left of it.
  const PolicyModel::GradientsDone sum_them = [&](std::span<Parameter* const> parameters) {
    reducer_.start(ctx_, parameters);
  };
  const std::vector<Microbatch> microbatches = mine(plan);
  std::int64_t index = 0;
  for (const Microbatch& microbatch : microbatches) {
    const bool last = index + 1 == std::ssize(microbatches);
    const TraceScope scope(ctx_.trace, TraceKind::kMicrobatch, "microbatch", {.index = index++});
    const PackedBatch packed = [&] {
      const Phase phase(ctx_, grid_.activity(), "plan", metrics.seconds.plan);
      return pack(batch_->groups(), microbatch, EdgeTokens::kInLoss, rows_);
    }();
    std::vector<double> logprobs(packed.edges.size()), entropies(packed.edges.size());
    model_.forward_backward(ctx_, packed, config_.recompute, config_.loss.temperature,
                            batch_->coefficients(packed), logprobs, entropies, &seconds,
                            last ? sum_them : PolicyModel::GradientsDone{});
    batch_->keep(packed, logprobs, entropies);
  }
  model_.settle_gradients(ctx_);  // those of a rank without micro-batches
  metrics.seconds.forward = seconds.forward;
  metrics.seconds.backward = seconds.backward;
  const Phase phase(ctx_, grid_.activity(), "reduce", metrics.seconds.reduce);
  reducer_.complete(ctx_, by_backward_);
  batch_->gather(ctx_.stream, grid_.replicas());
}

// Every rank takes the same decision: the norm has the same bits everywhere, and one rank that
// finds its loss not finite is enough for all to skip.
bool Trainer::update_weights(const LossSums& sums, StepMetrics& metrics) {
  {
    const Phase phase(ctx_, grid_.activity(), "optimizer", metrics.seconds.optimizer);
    const double norm = global_grad_norm(ctx_, parameters_, reducer_.spoken_for(), grid_.world());
    metrics.grad_norm = norm;
    const bool is_finite = std::isfinite(sums.loss) && std::isfinite(norm);
    if (on_any_rank(ctx_, grid_.world(), !is_finite)) return false;
    const double rate = config_.optimizer.schedule.at(optimizer_.applied_steps() + 1);
    optimizer_.step(ctx_, rate, clip_scale(norm, config_.optimizer.max_grad_norm),
                    [&](auto updated) { reducer_.start_gather(ctx_, updated); });
    metrics.learning_rate = rate;
  }
  const Phase phase(ctx_, grid_.activity(), "reduce", metrics.seconds.reduce);
  reducer_.gather_values(ctx_, parameters_);
  return true;
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
  if (grid_.world().size() == 1) metrics.seconds.reduce.reset();
  take_maxima(ctx_, grid_.world(), metrics);
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
  if (metrics_file_ && state_.step > 0) metrics_file_->settle();
}

// Before a step, when the weights have lain in memory since the last update brought them together.
bool Trainer::check_is_due() const {
  const std::int64_t every = config_.limits.parameter_check_steps;
  return every > 0 && state_.step % every == 0;
}

RunEnd Trainer::run(const std::function<bool()>& stop_requested) {
  const auto stopped = [&] {
    return on_any_rank(ctx_, grid_.world(), stop_requested && stop_requested());
  };
  const auto& [every_steps, keep_last, keep_precision, save_at_end] = config_.checkpoint;
  // Before the next checkpoint, which holds the line of its own step only.
  settle_metrics();
  bool stop = stopped();
  while (!stop && !limit_reached()) {
    if (check_is_due()) check_identical_parameters(ctx_, grid_, parameters_);
    std::optional<StepMetrics> metrics = step();
    if (!metrics) break;
    const bool give_up = state_.bad_in_a_row >= config_.limits.max_bad_steps;
    stop = stopped();
    const bool last =
        stop || (save_at_end && (limit_reached() || state_.step == planned_steps()));
    if (!give_up && (last || (every_steps > 0 && state_.step % every_steps == 0))) {
      Stopwatch clock(ctx_.stream);
      save();
      metrics->seconds.checkpoint = clock.lap();
      take_maxima(ctx_, grid_.world(), *metrics);
    }
    if (metrics_file_) metrics_file_->write(to_json(*metrics));
    if (events_.step_done) events_.step_done(*metrics);
    if (give_up) {
      grid_.activity() = {};  // the run fails, not what this rank was doing
      throw Error(fmt::format(
          "{} steps in a row were skipped, the last being step {} (no learning token, or a loss or "
          "gradient norm that is not finite). Nothing new was saved; look at the metrics and the "
          "rollouts, or raise limits.max_bad_steps.",
          state_.bad_in_a_row, state_.step));
    }
  }
  if (state_.step > saved_step_ && (stop || save_at_end)) save();
  return stop ? RunEnd::kStopped : RunEnd::kDone;
}

}  // namespace coppice
