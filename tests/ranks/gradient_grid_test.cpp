// One step of every grid of up to eight ranks against one rank: log-probs, entropies, every
// gradient and its norm. All grids of one model run in one process of eight ranks; a smaller grid
// runs as several copies.
//
// Seen red: a norm's gradient not summed over the tensor ranks under sequence parallelism; a
// replicated key-value head summed over all tensor ranks, or by none; a padding column let in;
// a shared key row left out of the gather; a gathered row's gradient not sent back, or twice.
#include <gtest/gtest.h>

#include "optim/grad_norm.hpp"
#include "ranks/grid_model.hpp"
#include "ranks/ranks_session.hpp"
#include "rl/scorer.hpp"
#include "rl/step_plan.hpp"
#include "rl/token_figures.hpp"
#include "rl/training_run.hpp"

namespace coppice {
namespace {

using namespace test;

struct GridCase {
  GridSizes sizes;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  Zero zero = Zero::kOptimizer;
  BatchingConfig batching{Sharing::kGrouped, 1000};
  Recompute recompute = Recompute::kNone;
};

std::string describe(const GridCase& c) {
  return fmt::format(
      "tensor {} context {} data {}, sequence parallel {}, zero {}, sharing {}, "
      "budget {}, recompute {}",
      c.sizes.tensor, c.sizes.context, c.sizes.data, c.sequence_parallel == SequenceParallel::kYes,
      c.zero == Zero::kOptimizer, static_cast<int>(c.batching.sharing),
      c.batching.max_rows_per_microbatch, static_cast<int>(c.recompute));
}

/// What a step computes, in logical terms.
struct StepResult {
  std::vector<double> logprobs, entropies;
  NamedTensors gradients;
  double norm = 0;
};

/// Calls and payload of the shared keys and values on this rank, counted and by formula.
struct SharedTraffic {
  std::int64_t gathers = 0, scatters = 0, gathered_bytes = 0, scattered_bytes = 0;
  friend bool operator==(const SharedTraffic&, const SharedTraffic&) = default;
};

SharedTraffic counted(const Communicator& context) {
  const auto& gather = context.counter(Collective::kAllGather);
  const auto& scatter = context.counter(Collective::kReduceScatter);
  return {gather.calls, scatter.calls, gather.bytes, scatter.bytes};
}

StepResult run_step(GridModel& model, ProcessGrid& grid, const std::vector<Group>& groups,
                    const GridCase& c) {
  const RowPlace place = row_place(model->config(), grid.parallel());
  const StepPlan plan = plan_step(groups, c.batching, EdgeTokens::kInLoss,
                                  packing_cost(model->config()), grid.sizes().data, place);
  TokenFigures figures(groups);
  const SharedTraffic before = counted(grid.context());
  SharedTraffic expected = before;
  model->zero_gradients(model.ctx());
  for (const Microbatch& microbatch :
       plan.ranks[static_cast<std::size_t>(grid.coordinates().dp_rank)].microbatches) {
    if (microbatch.empty()) continue;
    const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kInLoss, place);
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    const EdgeCoefficients coefficients = [&](std::int64_t first, std::span<const double>,
                                              std::span<const double>, std::span<double> by_logprob,
                                              std::span<double> by_entropy) {
      for (std::size_t i = 0; i < by_logprob.size(); ++i) {
        std::tie(by_logprob[i], by_entropy[i]) =
            coefficients_of(batch.edges[static_cast<std::size_t>(first) + i]);
      }
    };
    model->forward_backward(model.ctx(), batch, c.recompute, 0.9, coefficients, logprobs,
                            entropies);
    figures.keep(batch, logprobs, entropies);
    if (batch.shared.any()) {
      const ModelConfig& config = model->config();
      const auto heads =
          std::max<std::int64_t>(1, config.num_key_value_heads / grid.sizes().tensor);
      const auto row_bytes = 2 * heads * config.head_dim * size_of(model->dtype());
      const auto layers = config.num_hidden_layers;
      // Under BLOCK recomputation the gathered rows are not kept: each layer gathers again.
      const auto gathers = c.recompute == Recompute::kBlock ? 2 * layers : layers;
      expected.gathers += gathers;
      expected.gathered_bytes += gathers * row_bytes * std::ssize(batch.shared.rows);
      expected.scatters += layers;
      expected.scattered_bytes += layers * row_bytes * batch.shared.total();
    }
  }
  EXPECT_EQ(counted(grid.context()), expected) << "keys and values are gathered once per layer";
  figures.gather(model.ctx().stream, grid.replicas(), groups, EdgeTokens::kInLoss);
  GradientReducer reducer(grid, c.zero);
  const auto parameters = model->parameters();
  reducer.complete(model.ctx(), parameters);
  StepResult result;
  result.norm = global_grad_norm(model.ctx(), parameters, reducer.spoken_for(), grid.world());
  result.gradients = model.gradients(reducer.updated());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      for (std::size_t t = 0; t < groups[g].responses[r].ids.size(); ++t) {
        if (groups[g].responses[r].loss_mask[t] == 0) continue;
        result.logprobs.push_back(figures.logprobs(g, r)[t]);
        result.entropies.push_back(figures.entropies(g, r)[t]);
      }
    }
  }
  return result;
}

void expect_equal(const StepResult& got, const StepResult& expected) {
  constexpr double kBound = 1e-12;  // grid against one rank, f64
  EXPECT_LE(relative_difference(got.logprobs, expected.logprobs), kBound);
  EXPECT_LE(relative_difference(got.entropies, expected.entropies), kBound);
  EXPECT_NEAR(got.norm, expected.norm, kBound * expected.norm);
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), kBound) << name;
  }
}

std::vector<GridCase> grids(int ranks) {
  std::vector<GridCase> cases;
  for (const int tensor : {1, 2, 4, 8}) {
    for (const int context : {1, 2, 4}) {
      for (const int data : {1, 2}) {
        const GridSizes sizes{tensor, context, data};
        if (sizes.ranks() > ranks) continue;
        for (const auto sequence : {SequenceParallel::kNo, SequenceParallel::kYes}) {
          if (tensor == 1 && sequence == SequenceParallel::kYes) continue;
          cases.push_back({sizes, sequence});
        }
      }
    }
  }
  return cases;
}

class GradientGrid : public testing::TestWithParam<GridModelCase> {};

TEST_P(GradientGrid, EqualsOneRank) {
  auto& session = ranks_session();
  const ModelConfig config = config_of(GetParam());
  const std::vector<Group> groups = tiny_rollouts(config.vocab_size);
  ProcessGrid one;
  GridModel alone(config, one, DType::kF64);
  const StepResult expected =
      run_step(alone, one, groups, {.sizes = {}, .batching = {Sharing::kRepeated, 1000}});
  // Settings that must not matter are taken in turn, so that all of them meet every axis.
  int turn = 0;
  for (GridCase c : grids(session.size())) {
    ProcessGrid grid(session, c.sizes, {.seconds = 60}, key_value_sharers(config, c.sizes.tensor),
                     c.sequence_parallel);
    GridModel model(config, grid, DType::kF64);
    for (const auto sharing : {Sharing::kGrouped, Sharing::kRepeated}) {
      for (const std::int64_t budget : {1000, 44}) {
        c.batching = {sharing, budget};
        c.recompute = static_cast<Recompute>(turn % 3);
        c.zero = turn % 2 == 0 ? Zero::kOptimizer : Zero::kNone;
        ++turn;
        SCOPED_TRACE(describe(c));
        expect_equal(run_step(model, grid, groups, c), expected);
      }
    }
  }
}

// Odd vocabularies; of 33 tokens over 8 ranks the last holds none.
INSTANTIATE_TEST_SUITE_P(
    Models, GradientGrid,
    testing::Values(GridModelCase{"Llama", false, 2, 151}, GridModelCase{"Llama", true, 8, 33},
                    GridModelCase{"Qwen2", true, 1, 151}, GridModelCase{"Qwen2", false, 4, 33},
                    GridModelCase{"Qwen3", true, 2, 33}, GridModelCase{"Qwen3", false, 8, 151}),
    [](const auto& model) { return model.param.name(); });

}  // namespace
}  // namespace coppice
