// What a step is planned to send against what the communicators count while it runs, call by call
// and byte by byte, on every grid.
#include "model/communication_plan.hpp"
#include "core/build_config.hpp"

#include <gtest/gtest.h>

#include "ranks/grid_run.hpp"
#include "rl/scorer.hpp"
#include "rl/step_plan.hpp"
#include "rl/token_figures.hpp"

namespace coppice {
namespace {

using test::GridCase;
using test::GridRun;
using test::make_grid;
using test::TinyCase;

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

// Settings that change what is sent, in turn.
TrainerConfig trainer_config(std::size_t turn) {
  TrainerConfig config = test::tiny_trainer_config();
  config.batching.max_rows_per_microbatch = 40;
  config.batching.sharing = turn % 2 == 0 ? Sharing::kAuto : Sharing::kRepeated;
  config.recompute =
      std::array{Recompute::kNone, Recompute::kSelective, Recompute::kBlock}[turn % 3];
  return config;
}

// What each rank of the grid sends in the step of these groups, by (data, context, tensor).
std::vector<PlannedTraffic> planned(const ModelConfig& model, const GridCase& c,
                                    const TrainerConfig& config, DType dtype,
                                    const std::vector<Group>& groups) {
  const StepBatch batch(groups, config.loss, config.advantage);
  const CommunicationPlanner planner(model, dtype, config.recompute, c.zero, c.sizes,
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

void expect_counted(const PlannedTraffic& plan, ProcessGrid& grid,
                    const std::vector<CollectiveCounter>& before) {
  auto start = before.begin();
  for (const auto& [axis, comm] : axes_of(grid))
    for (const Collective kind : kCollectives) {
      const CollectiveCounter& now = comm->counter(kind);
      const std::string what = fmt::format("{} {}", name_of(axis), name_of(kind));
      if (comm->size() > 1) {
        EXPECT_EQ(plan.at(axis, kind).calls, now.calls - start->calls) << what;
      }
      EXPECT_EQ(plan.at(axis, kind).bytes, now.bytes - start->bytes) << what;
      ++start;
    }
}

// Takes a step for every pair of groups.
void expect_planned(const TinyCase& tiny, const GridCase& c, const TrainerConfig& config,
                    const test::Backend& backend, const std::vector<Group>& groups,
                    GridDevice::Axes axes = GridDevice::Axes::kStaged) {
  const ModelConfig model = test::config_of(tiny);
  SCOPED_TRACE(fmt::format("{} {}", tiny.name(), name_of(c)));
  const auto grid = make_grid(c, model, {backend.device, axes});
  GridRun run(*grid, c, groups, config,
              {.dtype = backend.dtype, .device = backend.device, .tiny = tiny}, "unused");
  for (std::size_t first = 0; first + 2 <= groups.size(); first += 2) {
    const auto ranks = planned(model, c, config, backend.dtype, {groups[first], groups[first + 1]});
    std::vector<CollectiveCounter> before;
    for (const auto& [axis, comm] : axes_of(*grid))
      for (const Collective kind : kCollectives) before.push_back(comm->counter(kind));
    const auto metrics = run.trainer().step();
    ASSERT_TRUE(metrics && !metrics->skipped);
    expect_counted(ranks[static_cast<std::size_t>(grid->world().rank())], *grid, before);
    PlannedTraffic all;
    for (const PlannedTraffic& rank : ranks) all.add_rank(rank);
    EXPECT_EQ(all.bytes(), metrics->communication_bytes.value_or(0));
    for (const AxisTraffic& axis : metrics->communication) {
      if (axis.axis != "world") continue;
      EXPECT_EQ(all.bytes(GridAxis::kWorld), axis.bytes);
    }
  }
}

// Mutations seen red: one more gather of the shared rows in a layer's forward; a sum over tensor
// ranks left out of the plan.
TEST(CommunicationPlan, CountsEveryCallAndByteOfAStepOnEveryGrid) {
  std::size_t turn = 0;
  for (const TinyCase& tiny : {TinyCase{"Llama", false, 4, 2, 6}, {"Qwen3", true, 3, 1, 4}}) {
    for (const GridCase& c : test::grid_cases(test::config_of(tiny))) {
      const DType dtype = ++turn % 2 == 0 ? DType::kF64 : DType::kF32;
      expect_planned(tiny, c, trainer_config(turn), {Device{}, dtype}, test::tiny_rollouts());
    }
  }
}

class CommunicationPlanOn : public testing::TestWithParam<test::Backend> {};
INSTANTIATE_TEST_SUITE_P(Devices, CommunicationPlanOn, testing::ValuesIn(test::cuda_backends()),
                         [](const auto& backend) { return backend.param.name(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicationPlanOn);

// Values and activations are bf16, gradients and parts of sums over ranks f32. Seen red with the
// context ranks' sums of key and value gradients planned in bf16.
TEST_P(CommunicationPlanOn, CountsWhatIsStoredInOneTypeAndSummedInAnother) {
  const TinyCase tiny{"Qwen3", false, 2, 1, 64, 61, 64};
  auto groups = test::tiny_rollouts();
  groups.resize(2);
  std::size_t turn = 0;
  for (const GridCase& c : test::grid_cases(test::config_of(tiny))) {
    expect_planned(tiny, c, trainer_config(++turn), GetParam(), groups);
    // Real ranks share the one device here.
    if constexpr (build::kEmulatedDevice)
      expect_planned(tiny, c, trainer_config(turn), GetParam(), groups, GridDevice::Axes::kNccl);
  }
}

// Keys and values of shared rows: L gathers in forward, L reductions in backward of each
// micro-batch; 2 Hkv D elements a row.
TEST(CommunicationPlan, GathersThePrefixOncePerLayer) {
  const int ranks = test::ranks_session().size();
  const GridCase c{.sizes = {.context = ranks}};
  const ModelConfig model = test::config_of({"Llama", true});
  const auto grid = make_grid(c, model);
  const auto groups = test::tiny_rollouts();
  GridRun run(*grid, c, groups, test::tiny_trainer_config(), {.tiny = {"Llama", true}}, "unused");
  const RowPlace place = row_place(model, grid->parallel());
  const auto plan = plan_microbatches(groups, {Sharing::kGrouped, 1000}, EdgeTokens::kInLoss,
                                      packing_cost(model));
  std::int64_t gathers = 0, own_rows = 0, all_rows = 0;
  for (const Microbatch& microbatch : plan.microbatches) {
    const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kInLoss, place);
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    run.model().forward_backward(
        run.ctx(), batch, Recompute::kNone, 1.0,
        [](auto, auto, auto, std::span<double> c_out, auto) {
          for (double& value : c_out) value = 1.0;
        },
        logprobs, entropies);
    gathers += ranks > 1 ? model.num_hidden_layers : 0;
    own_rows += std::ssize(batch.shared.rows);
    all_rows += batch.shared.total();
  }
  const auto row = model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim * 8;
  const Communicator& context = grid->context();
  EXPECT_EQ(context.counter(Collective::kAllGather).calls, gathers);
  EXPECT_EQ(context.counter(Collective::kReduceScatter).calls, gathers);
  EXPECT_EQ(context.counter(Collective::kAllGather).bytes, own_rows * row);
  EXPECT_EQ(context.counter(Collective::kReduceScatter).bytes, all_rows * row);
  EXPECT_EQ(context.counter(Collective::kAllReduce).calls, 0);
}

}  // namespace
}  // namespace coppice
