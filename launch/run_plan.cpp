#include "launch/run_plan.hpp"

#include <algorithm>

#include "rl/scorer.hpp"

namespace coppice {
namespace {

double repeated_flops(const StepBatch& batch, const ModelConfig& model) {
  BatchingConfig repeated{.sharing = Sharing::kRepeated};
  for (const auto& group : batch.groups())
    for (const auto& response : group.responses)
      repeated.max_rows_per_microbatch =
          std::max(repeated.max_rows_per_microbatch,
                   std::ssize(group.prompt_ids) + std::ssize(response.ids));
  PackedWork work;
  const auto plan =
      plan_microbatches(batch.groups(), repeated, EdgeTokens::kInLoss, packing_cost(model));
  for (const auto& microbatch : plan.microbatches)
    add(work, work_of(pack(batch.groups(), microbatch, EdgeTokens::kInLoss)));
  return executed_flops(model, work);
}

// Passes that run for a step: training always, scoring where old log-probs are missing.
struct MemoryPlanners {
  MemoryPlanner training, scoring;

  MemoryPlan plan() const {
    MemoryPlan plan = training.plan();
    for (auto& line : plan.lines)
      for (const auto& other : scoring.plan().lines)
        if (line.name == other.name) line.bytes = std::max(line.bytes, other.bytes);
    return plan;
  }
};

PlannedStep plan_step(const StepBatch& batch, const TrainerConfig& config, const ModelConfig& model,
                      MemoryPlanners& memory) {
  PlannedStep step;
  step.groups = batch.figures().groups;
  step.responses = batch.figures().responses;
  step.loss_tokens = batch.totals().tokens;
  if (step.loss_tokens == 0) return step;  // such a step is skipped
  const auto plan =
      plan_microbatches(batch.groups(), config.batching, EdgeTokens::kInLoss, packing_cost(model));
  for (const auto& microbatch : plan.microbatches) {
    const PackedBatch packed = pack(batch.groups(), microbatch, EdgeTokens::kInLoss);
    add(step.work, work_of(packed));
    memory.training.add(packed);
    if (batch.needs_old_logprobs()) memory.scoring.add(packed);
  }
  step.microbatches = std::ssize(plan.microbatches);
  step.logical_rows = batch.figures().logical_rows;
  step.fallbacks = plan.fallbacks;
  step.sharing = plan.sharing_name();
  step.executed_flops = executed_flops(model, step.work);
  step.repeated_flops = repeated_flops(batch, model);
  return step;
}

void add_to(PlannedStep& total, const PlannedStep& step) {
  total.step = step.step;
  total.groups += step.groups;
  total.responses += step.responses;
  total.loss_tokens += step.loss_tokens;
  total.microbatches += step.microbatches;
  add(total.work, step.work);
  total.logical_rows += step.logical_rows;
  total.fallbacks += step.fallbacks;
  total.executed_flops += step.executed_flops;
  total.repeated_flops += step.repeated_flops;
  if (total.sharing.empty())
    total.sharing = step.sharing;
  else if (!step.sharing.empty() && step.sharing != total.sharing)
    total.sharing = "MIXED";
}

}  // namespace

RunPlan plan_run(const RunConfig& config, RunData& data) {
  const TrainerConfig& trainer = config.trainer;
  const std::int64_t limit = trainer.limits.max_steps;
  RunPlan plan;
  const auto planner = [&](PassKind pass) {
    return MemoryPlanner(data.model.config, config.precision, pass, trainer.recompute,
                         config.threads_per_rank);
  };
  MemoryPlanners memory{planner(PassKind::kTrain), planner(PassKind::kScore)};
  const auto is_full = [&] { return limit > 0 && std::ssize(plan.steps) >= limit; };
  while (!is_full()) {
    auto groups = data.source.take(trainer.groups_per_step);
    if (groups.empty()) break;
    const StepBatch batch(std::move(groups), trainer.loss, trainer.advantage);
    PlannedStep step = plan_step(batch, trainer, data.model.config, memory);
    for (std::int64_t update = 0; update < trainer.loss.updates_per_batch && !is_full(); ++update) {
      step.step = std::ssize(plan.steps) + 1;
      plan.steps.push_back(step);
      add_to(plan.total, step);
    }
  }
  plan.memory = memory.plan();
  if (plan.total.executed_flops > 0)
    plan.predicted_speedup = plan.total.repeated_flops / plan.total.executed_flops;
  return plan;
}

}  // namespace coppice
