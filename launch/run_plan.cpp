#include "launch/run_plan.hpp"

#include <algorithm>

#include "rl/scorer.hpp"
#include "rl/step_plan.hpp"
#include "rl/token_figures.hpp"

namespace coppice {
namespace {

double repeated_flops(const StepBatch& batch, const ModelConfig& model) {
  BatchingConfig repeated{.sharing = Sharing::kRepeated};
  for (const auto& group : batch.groups())
    for (const auto& response : group.responses)
      repeated.max_rows_per_microbatch =
          std::max(repeated.max_rows_per_microbatch,
                   std::ssize(group.prompt_ids) + std::ssize(response.ids));
  const auto plan =
      plan_microbatches(batch.groups(), repeated, EdgeTokens::kInLoss, packing_cost(model));
  return executed_flops(model, plan.work);
}

class Planner {
 public:
  Planner(const RunConfig& config, const ModelConfig& model)
      : trainer_(config.trainer),
        model_(model),
        grid_(config.grid),
        communication_(model, config.precision, trainer_.recompute, trainer_.zero, grid_,
                       config.sequence_parallel),
        memory_(memory_planner(config)) {
    const bool sharded = config.sequence_parallel == SequenceParallel::kYes;
    rows_ = {.cp_size = grid_.context,
             .row_multiple = sharded ? grid_.tensor : 1,
             .costs = row_costs(model)};
  }

  PlannedStep plan(const StepBatch& batch) {
    PlannedStep step;
    step.groups = batch.figures().groups;
    step.responses = batch.figures().responses;
    step.loss_tokens = batch.totals().tokens;
    if (step.loss_tokens == 0) return step;  // such a step is skipped
    const StepPlan plan = plan_step(batch.groups(), trainer_.batching, EdgeTokens::kInLoss,
                                    packing_cost(model_), grid_.data, rows_);
    for (int dp_rank = 0; dp_rank < grid_.data; ++dp_rank)
      for (int cp_rank = 0; cp_rank < grid_.context; ++cp_rank)
        plan_rank(batch, plan, {dp_rank, cp_rank, {}, 0}, step);
    step.microbatches = plan.microbatches();
    step.work = plan.work;
    step.logical_rows = batch.figures().logical_rows;
    step.alignment_rows = plan.alignment_rows;
    step.fallbacks = plan.fallbacks;
    step.sharing = plan.sharing_name();
    step.imbalance = plan.imbalance;
    step.executed_flops = executed_flops(model_, step.work);
    step.repeated_flops = repeated_flops(batch, model_);
    return step;
  }

  MemoryPlan memory() const { return memory_.plan(); }

 private:
  MemoryPlanner memory_planner(const RunConfig& config) const {
    const bool sharded = trainer_.zero == Zero::kOptimizer;
    return {model_,
            config.precision,
            PassKind::kTrain,
            trainer_.recompute,
            config.threads_per_rank,
            {.tensor_size = grid_.tensor,
             .sequence_parallel = config.sequence_parallel,
             .moment_shards = sharded ? grid_.context * grid_.data : 1}};
  }

  // The tensor ranks of one data and context rank.
  void plan_rank(const StepBatch& batch, const StepPlan& plan, RankWork rank, PlannedStep& step) {
    RowPlace place = rows_;
    place.cp_rank = rank.cp_rank;
    const int replica = rank.dp_rank * grid_.context + rank.cp_rank;
    std::vector<PlannedTraffic> traffic(
        static_cast<std::size_t>(grid_.tensor),
        communication_.of_update(TokenFigures::gather_bytes(step.loss_tokens), replica));
    for (const auto& microbatch : plan.ranks[static_cast<std::size_t>(rank.dp_rank)].microbatches) {
      if (microbatch.empty()) continue;
      const PackedBatch packed = pack(batch.groups(), microbatch, EdgeTokens::kInLoss, place);
      add(rank.work, work_of(packed));
      rank.alignment_rows += packed.alignment_rows;
      memory_.add(packed, replica);
      if (batch.needs_old_logprobs()) memory_.add_scoring(packed, replica);
      for (int tp_rank = 0; tp_rank < grid_.tensor; ++tp_rank)
        traffic[static_cast<std::size_t>(tp_rank)].add(
            communication_.of_microbatch(packed, tp_rank));
    }
    for (const PlannedTraffic& sent : traffic) step.traffic.add_rank(sent);
    step.ranks.push_back(rank);
  }

  const TrainerConfig& trainer_;
  const ModelConfig& model_;
  GridSizes grid_;
  RowPlace rows_;
  CommunicationPlanner communication_;
  MemoryPlanner memory_;
};

void add_to(PlannedStep& total, const PlannedStep& step) {
  total.step = step.step;
  total.groups += step.groups;
  total.responses += step.responses;
  total.loss_tokens += step.loss_tokens;
  total.microbatches += step.microbatches;
  add(total.work, step.work);
  total.logical_rows += step.logical_rows;
  total.alignment_rows += step.alignment_rows;
  total.fallbacks += step.fallbacks;
  // Steps follow one another: their imbalances count by their work.
  const double flops = total.executed_flops + step.executed_flops;
  if (flops > 0)
    total.imbalance =
        (total.imbalance * total.executed_flops + step.imbalance * step.executed_flops) / flops;
  total.executed_flops = flops;
  total.repeated_flops += step.repeated_flops;
  total.traffic.add(step.traffic);
  if (total.ranks.empty()) {
    total.ranks = step.ranks;
  } else {
    for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
      add(total.ranks[rank].work, step.ranks[rank].work);
      total.ranks[rank].alignment_rows += step.ranks[rank].alignment_rows;
    }
  }
  if (total.sharing.empty())
    total.sharing = step.sharing;
  else if (!step.sharing.empty() && step.sharing != total.sharing)
    total.sharing = "MIXED";
}

}  // namespace

RunPlan plan_run(const RunConfig& config, const ModelConfig& model, GroupSource& source) {
  const TrainerConfig& trainer = config.trainer;
  const std::int64_t limit = trainer.limits.max_steps;
  RunPlan plan;
  Planner planner(config, model);
  const auto is_full = [&] { return limit > 0 && std::ssize(plan.steps) >= limit; };
  while (!is_full()) {
    auto groups = source.take(trainer.groups_per_step);
    if (groups.empty()) break;
    const StepBatch batch(std::move(groups), trainer.loss, trainer.advantage);
    PlannedStep step = planner.plan(batch);
    for (std::int64_t update = 0; update < trainer.loss.updates_per_batch && !is_full(); ++update) {
      step.step = std::ssize(plan.steps) + 1;
      plan.steps.push_back(step);
      add_to(plan.total, step);
    }
  }
  plan.memory = planner.memory();
  if (plan.total.executed_flops > 0)
    plan.predicted_speedup = plan.total.repeated_flops / plan.total.executed_flops;
  return plan;
}

}  // namespace coppice
