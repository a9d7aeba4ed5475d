#include "launch/cluster_shape.hpp"

#include <algorithm>

#include "rl/scorer.hpp"
#include "rl/token_figures.hpp"

namespace coppice {
namespace {

MicrobatchShape shape_of(const PackedBatch& batch, double count) {
  MicrobatchShape shape{.count = count,
                        .rows = batch.rows(),
                        .edge_rows = work_of(batch).edge_rows,
                        .visible_pairs = batch.plan.visible_pairs()};
  for (const QueryRange& range : batch.plan.query_ranges()) {
    const auto seen = std::ssize(range.full) + (range.square == QueryRange::kNoSquare ? 0 : 1);
    shape.ranges += seen;
    shape.range_rows += seen * range.length;
  }
  return shape;
}

// Micro-batches by cost, and of many every so many-th: first the costliest.
std::vector<const Microbatch*> representatives(const MicrobatchPlan& plan, const PackingCost& cost,
                                               std::size_t most, double& count) {
  std::vector<const Microbatch*> all, chosen;
  for (const Microbatch& microbatch : plan.microbatches)
    if (!microbatch.empty()) all.push_back(&microbatch);
  count = 1;
  if (all.size() <= most) return all;
  std::stable_sort(all.begin(), all.end(), [&](const Microbatch* a, const Microbatch* b) {
    return cost(a->work) > cost(b->work);
  });
  for (std::size_t i = 0; i < most; ++i) chosen.push_back(all[i * all.size() / most]);
  count = static_cast<double>(all.size()) / static_cast<double>(most);
  return chosen;
}

}  // namespace

StepPlan ClusterStep::plan(const RunConfig& config, const ModelConfig& model,
                           const StepBatch& batch) {
  // How rows fall on context ranks matters for the representatives only.
  return plan_step(batch.groups(), config.trainer.batching, EdgeTokens::kInLoss,
                   packing_cost(model), config.grid.data);
}

ClusterStep::ClusterStep(const RunConfig& config, const ModelConfig& model, const StepBatch& batch,
                         const StepPlan& plan)
    : config_(config),
      model_(model),
      loss_tokens_(batch.totals().tokens),
      scores_old_(batch.needs_old_logprobs()) {
  if (loss_tokens_ > 0) pack_representatives(batch, plan);
}

void ClusterStep::pack_representatives(const StepBatch& batch, const StepPlan& plan) {
  const PackingCost cost = packing_cost(model_);
  const GridSizes& grid = config_.grid;
  const bool sharded = config_.sequence_parallel == SequenceParallel::kYes;
  RowPlace place{.cp_size = grid.context,
                 .row_multiple = sharded ? grid.tensor : 1,
                 .costs = row_costs(model_)};
  executed_flops_ = executed_flops(model_, plan.work);
  microbatches_ = plan.microbatches();
  const auto slowest = std::max_element(plan.ranks.begin(), plan.ranks.end(),
                                        [&](const MicrobatchPlan& a, const MicrobatchPlan& b) {
                                          return cost(a.work) < cost(b.work);
                                        });
  // Dealing rows to very many context ranks takes long: then fewer stand for more.
  const std::size_t most = std::clamp<std::size_t>(
      16 * kMostPacked / static_cast<std::size_t>(grid.context), 1, kMostPacked);
  double count = 1;
  for (const Microbatch* microbatch : representatives(*slowest, cost, most, count)) {
    if (grid.context > 1) {
      const RowPartition partition(forest_of(batch.groups(), *microbatch), grid.context,
                                   place.costs);
      const auto costs = partition.rank_costs();
      place.cp_rank =
          static_cast<int>(std::max_element(costs.begin(), costs.end()) - costs.begin());
    }
    packed_.push_back({pack(batch.groups(), *microbatch, EdgeTokens::kInLoss, place), count});
  }
}

StepShape ClusterStep::shape(Recompute recompute) const {
  const TrainerConfig& trainer = config_.trainer;
  const CommunicationPlanner communication(model_, config_.precision, recompute, trainer.zero,
                                           config_.grid, config_.sequence_parallel);
  StepShape shape{.model = model_,
                  .dtype = config_.precision,
                  .recompute = recompute,
                  .zero = trainer.zero,
                  .grid = config_.grid,
                  .sequence_parallel = config_.sequence_parallel,
                  .overlap = config_.overlap,
                  .executed_flops = executed_flops_};
  for (const Packed& packed : packed_) {
    shape.microbatches.push_back(shape_of(packed.batch, packed.count));
    shape.microbatches.back().traffic = communication.of_microbatch(packed.batch, 0);
  }
  if (!packed_.empty())
    shape.update_traffic =
        communication.of_update(TokenFigures::gather_bytes(loss_tokens_), last_replica());
  return shape;
}

MemoryPlan ClusterStep::memory(Recompute recompute) const {
  const bool shares = config_.trainer.zero == Zero::kOptimizer;
  MemoryPlanner planner(model_, config_.precision, PassKind::kTrain, recompute,
                        config_.threads_per_rank,
                        {.tensor_size = config_.grid.tensor,
                         .sequence_parallel = config_.sequence_parallel,
                         .moment_shards = shares ? config_.grid.context * config_.grid.data : 1});
  for (const Packed& packed : packed_) {
    planner.add(packed.batch, shares ? last_replica() : 0);
    if (scores_old_) planner.add_scoring(packed.batch, shares ? last_replica() : 0);
  }
  return planner.plan();
}

StepPrediction predict_step(const RunConfig& config, const ModelConfig& model,
                            const StepBatch& batch, const ClusterProfile& cluster) {
  return predict_step(ClusterStep(config, model, batch).shape(config.trainer.recompute), cluster);
}

void move_to(const ClusterProfile& cluster, RunConfig& config) {
  config.device = cluster.kind;
  config.precision = cluster.dtype();
  if (cluster.kind == DeviceKind::kCpu) config.threads_per_rank = cluster.threads;
}

}  // namespace coppice
