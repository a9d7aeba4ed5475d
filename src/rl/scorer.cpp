#include "rl/scorer.hpp"

#include "rl/step_plan.hpp"
#include "rl/token_figures.hpp"

namespace coppice {

std::vector<GroupScores> score_groups(ExecContext& ctx, ProcessGrid& grid, PolicyModel& model,
                                      std::span<const Group> groups, const BatchingConfig& batching,
                                      double temperature, ScoreReport* report,
                                      const ScoreProgress& progress) {
  check_row_budget(groups, batching);
  const RowPlace rows = row_place(model.config(), grid.parallel());
  const StepPlan plan = plan_step(groups, batching, EdgeTokens::kAll, packing_cost(model.config()),
                                  grid.sizes().data, rows);
  TokenFigures figures(groups);
  const auto in_phase = [&](const char* name, const auto& work) {
    const TraceScope scope(ctx.trace, TraceKind::kPhase, name);
    return work();
  };
  std::int64_t done = 0;
  const auto my_rank = static_cast<std::size_t>(grid.coordinates().dp_rank);
  for (const Microbatch& microbatch : plan.ranks[my_rank].microbatches) {
    if (!microbatch.empty()) {
      const TraceScope scope(ctx.trace, TraceKind::kMicrobatch, "microbatch", {.index = done});
      const PackedBatch batch =
          in_phase("plan", [&] { return pack(groups, microbatch, EdgeTokens::kAll, rows); });
      std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
      in_phase("forward", [&] { model.score(ctx, batch, temperature, logprobs, entropies); });
      figures.keep(batch, logprobs, entropies);
    }
    if (progress) progress(++done, plan.microbatches());
  }
  in_phase("reduce",
           [&] { figures.gather(ctx.stream, grid.replicas(), groups, EdgeTokens::kAll); });

  ScoreReport totals{.work = plan.work,
                     .alignment_rows = plan.alignment_rows,
                     .microbatches = plan.microbatches(),
                     .fallbacks = plan.fallbacks,
                     .sharing = plan.sharing_name()};
  std::vector<GroupScores> scores(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    totals.logical_rows += logical_rows(groups[g]);
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      const auto logprobs = figures.logprobs(g, r), entropies = figures.entropies(g, r);
      scores[g].push_back(
          {{logprobs.begin(), logprobs.end()}, {entropies.begin(), entropies.end()}});
    }
  }
  if (report != nullptr) *report = totals;
  return scores;
}

std::vector<GroupScores> score_groups(ExecContext& ctx, PolicyModel& model,
                                      std::span<const Group> groups, const BatchingConfig& batching,
                                      double temperature, ScoreReport* report,
                                      const ScoreProgress& progress) {
  ProcessGrid one_rank;
  return score_groups(ctx, one_rank, model, groups, batching, temperature, report, progress);
}

}  // namespace coppice
