#include "rl/scorer.hpp"

namespace coppice {

PackingCost packing_cost(const ModelConfig& config) {
  return [&config](const PackedWork& work) { return executed_flops(config, work); };
}

std::vector<GroupScores> score_groups(
    ExecContext& ctx, PolicyModel& model, std::span<const Group> groups,
    const BatchingConfig& batching, double temperature, ScoreReport* report,
    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  check_row_budget(groups, batching);
  const MicrobatchPlan plan =
      plan_microbatches(groups, batching, EdgeTokens::kAll, packing_cost(model.config()));
  ScoreReport figures;
  figures.microbatches = std::ssize(plan.microbatches);
  figures.fallbacks = plan.fallbacks;
  figures.sharing = plan.sharing_name();

  std::vector<GroupScores> scores(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    figures.logical_rows += logical_rows(groups[g]);
    for (const Response& response : groups[g].responses)
      scores[g].push_back(
          {std::vector<double>(response.ids.size()), std::vector<double>(response.ids.size())});
  }
  std::int64_t done = 0;
  for (const Microbatch& microbatch : plan.microbatches) {
    const PackedBatch batch = pack(groups, microbatch, EdgeTokens::kAll);
    std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
    model.score(ctx, batch, temperature, logprobs, entropies);
    for (std::size_t i = 0; i < batch.edges.size(); ++i) {
      const PredictionEdge& edge = batch.edges[i];
      ResponseScores& response =
          scores[static_cast<std::size_t>(edge.group)][static_cast<std::size_t>(edge.response)];
      response.logprobs[static_cast<std::size_t>(edge.offset)] = logprobs[i];
      response.entropies[static_cast<std::size_t>(edge.offset)] = entropies[i];
    }
    add(figures.work, work_of(batch));
    if (progress) progress(++done, std::ssize(plan.microbatches));
  }
  if (report != nullptr) *report = figures;
  return scores;
}

}  // namespace coppice
