// What a step is planned to send against what the communicators count while it runs, call by call
// and byte by byte, on every grid.
#include "model/communication_plan.hpp"

#include <gtest/gtest.h>

#include "ranks/grid_runs.hpp"
#include "rl/scorer.hpp"
#include "rl/step_plan.hpp"
#include "rl/token_figures.hpp"
#include "rl/training_run.hpp"

namespace coppice {
namespace {

using test::GridCase;
using test::GridModel;

constexpr std::array kCollectives = {Collective::kAllReduce, Collective::kAllGather,
                                     Collective::kReduceScatter, Collective::kBroadcast,
                                     Collective::kBarrier};

// The counters of the axes that only a step itself uses.
std::vector<std::pair<GridAxis, Communicator*>> axes_of(ProcessGrid& grid) {
  return {{GridAxis::kTensor, &grid.tensor()},
          {GridAxis::kContext, &grid.context()},
          {GridAxis::kReplicas, &grid.replicas()},
          {GridAxis::kSharedKeyValue, &grid.shared_key_value()}};
}

TrainerConfig trainer_config(std::size_t turn) {
  TrainerConfig config = test::tiny_trainer_config();
  config.run_dir = "unused";
  config.batching.max_rows_per_microbatch = 40;
  config.batching.sharing = turn % 2 == 0 ? Sharing::kAuto : Sharing::kRepeated;
  config.recompute =
      std::array{Recompute::kNone, Recompute::kSelective, Recompute::kBlock}[turn % 3];
  config.zero = turn % 2 == 0 ? Zero::kOptimizer : Zero::kNone;
  return config;
}

// What each rank of the grid sends in the step of these groups, by (data, context, tensor).
std::vector<PlannedTraffic> planned(const GridModel& run, const GridCase& c,
                                    const TrainerConfig& config, DType dtype,
                                    const std::vector<Group>& groups) {
  const StepBatch batch(groups, config.loss, config.advantage);
  const ModelConfig& model = run.model->config();
  const CommunicationPlanner planner(model, dtype, config.recompute, config.zero, c.sizes,
                                     c.sequence_parallel);
  RowPlace rows{.cp_size = c.sizes.context,
                .row_multiple = c.sequence_parallel == SequenceParallel::kYes ? c.sizes.tensor : 1,
                .costs = row_costs(model)};
  const StepPlan plan = plan_step(batch.groups(), config.batching, EdgeTokens::kInLoss,
                                  packing_cost(model), c.sizes.data, rows);
  std::vector<PlannedTraffic> ranks;
  for (int dp_rank = 0; dp_rank < c.sizes.data; ++dp_rank)
    for (rows.cp_rank = 0; rows.cp_rank < c.sizes.context; ++rows.cp_rank)
      for (int tp_rank = 0; tp_rank < c.sizes.tensor; ++tp_rank) {
        ranks.push_back(planner.of_update(TokenFigures::gather_bytes(batch.totals().tokens),
                                          dp_rank * c.sizes.context + rows.cp_rank));
        for (const auto& microbatch : plan.ranks[static_cast<std::size_t>(dp_rank)].microbatches)
          if (!microbatch.empty())
            ranks.back().add(planner.of_microbatch(
                pack(batch.groups(), microbatch, EdgeTokens::kInLoss, rows), tp_rank));
      }
  return ranks;
}

// Mutations seen red: one more gather of the shared rows in a layer's forward; a sum over tensor
// ranks left out of the plan.
TEST(CommunicationPlan, CountsEveryCallAndByteOfAStepOnEveryGrid) {
  std::size_t turn = 0;
  for (const GridCase& c : test::grid_cases(test::ranks_session().size())) {
    SCOPED_TRACE(test::name_of(c));
    const DType dtype = ++turn % 2 == 0 ? DType::kF64 : DType::kF32;
    GridModel run(c, dtype, WithGradients::kYes);
    const TrainerConfig config = trainer_config(turn);
    RolloutsSource source(test::tiny_rollouts(), 1, false, 1);
    Trainer trainer(run.context.ctx(), *run.model, source, config, run.grid);
    const auto groups = source.groups();
    for (std::size_t first = 0; first + 2 <= groups.size(); first += 2) {
      const auto ranks = planned(run, c, config, dtype, {groups[first], groups[first + 1]});
      const PlannedTraffic& mine = ranks[static_cast<std::size_t>(test::ranks_session().rank())];
      std::vector<CollectiveCounter> before;
      for (const auto& [axis, comm] : axes_of(run.grid))
        for (const Collective kind : kCollectives) before.push_back(comm->counter(kind));
      const auto metrics = trainer.step();
      ASSERT_TRUE(metrics && !metrics->skipped);
      auto start = before.begin();
      for (const auto& [axis, comm] : axes_of(run.grid))
        for (const Collective kind : kCollectives) {
          const CollectiveCounter& now = comm->counter(kind);
          if (comm->size() > 1) {
            EXPECT_EQ(mine.at(axis, kind).calls, now.calls - start->calls)
                << name_of(axis) << " " << name_of(kind);
          }
          EXPECT_EQ(mine.at(axis, kind).bytes, now.bytes - start->bytes)
              << name_of(axis) << " " << name_of(kind);
          ++start;
        }
      PlannedTraffic all;
      for (const PlannedTraffic& rank : ranks) all.add_rank(rank);
      EXPECT_EQ(all.bytes(), metrics->communication_bytes.value_or(0));
      for (const AxisTraffic& axis : metrics->communication) {
        if (axis.axis == "world") EXPECT_EQ(all.bytes(GridAxis::kWorld), axis.bytes);
      }
    }
  }
}

// Keys and values of shared rows: L gathers in forward, L reductions in backward of each
// micro-batch; 2 Hkv D elements a row.
TEST(CommunicationPlan, GathersThePrefixOncePerLayer) {
  const int ranks = test::ranks_session().size();
  const GridCase c{{1, ranks, 1}, SequenceParallel::kNo, {"Llama", true}};
  GridModel run(c, DType::kF64, WithGradients::kYes);
  const ModelConfig& model = run.model->config();
  const auto groups = test::tiny_rollouts();
  const RowPlace place = row_place(model, run.grid.parallel());
  const auto plan = plan_microbatches(groups, {Sharing::kGrouped, 1000}, EdgeTokens::kInLoss,
                                      packing_cost(model));
  std::int64_t gathers = 0, own_rows = 0, all_rows = 0;
  for (const Microbatch& microbatch : plan.microbatches) {
    const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kInLoss, place);
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    run.model->forward_backward(
        run.context.ctx(), batch, Recompute::kNone, 1.0,
        [](auto, auto, auto, std::span<double> c_out, auto) {
          for (double& value : c_out) value = 1.0;
        },
        logprobs, entropies);
    gathers += ranks > 1 ? model.num_hidden_layers : 0;
    own_rows += std::ssize(batch.shared.rows);
    all_rows += batch.shared.total();
  }
  const auto row = model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim * 8;
  const Communicator& context = run.grid.context();
  EXPECT_EQ(context.counter(Collective::kAllGather).calls, gathers);
  EXPECT_EQ(context.counter(Collective::kReduceScatter).calls, gathers);
  EXPECT_EQ(context.counter(Collective::kAllGather).bytes, own_rows * row);
  EXPECT_EQ(context.counter(Collective::kReduceScatter).bytes, all_rows * row);
  EXPECT_EQ(context.counter(Collective::kAllReduce).calls, 0);
}

}  // namespace
}  // namespace coppice
