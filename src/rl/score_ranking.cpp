#include "rl/score_ranking.hpp"

#include <algorithm>
#include <numeric>

namespace coppice {
namespace {

// Puts each candidate's place in the order of `figure`, largest first, into `place`.
void put_places(std::vector<RankedCandidate>& candidates, double RankedCandidate::*figure,
                std::int64_t RankedCandidate::*place) {
  std::vector<RankedCandidate*> order;
  for (RankedCandidate& candidate : candidates) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    if ((a->tokens == 0) != (b->tokens == 0)) return b->tokens == 0;
    return a->*figure > b->*figure;
  });
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i]->*place = static_cast<std::int64_t>(i) + 1;
}

}  // namespace

std::vector<RankedCandidate> rank_candidates(std::span<const ResponseScores> group) {
  std::vector<RankedCandidate> candidates;
  for (const ResponseScores& scores : group) {
    const auto& logprobs = scores.logprobs;
    RankedCandidate candidate{std::ssize(candidates), std::ssize(logprobs)};
    candidate.sum = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
    if (!logprobs.empty()) candidate.mean = candidate.sum / static_cast<double>(logprobs.size());
    candidates.push_back(candidate);
  }
  put_places(candidates, &RankedCandidate::sum, &RankedCandidate::by_sum);
  put_places(candidates, &RankedCandidate::mean, &RankedCandidate::by_mean);
  return candidates;
}

}  // namespace coppice
