#include "rl/token_figures.hpp"

#include <limits>

namespace coppice {

TokenFigures::TokenFigures(std::span<const Group> groups) {
  std::size_t tokens = 0;
  for (const Group& group : groups) {
    first_response_.push_back(begins_.size());
    for (const Response& response : group.responses) {
      begins_.push_back(tokens);
      tokens += response.ids.size();
    }
  }
  begins_.push_back(tokens);
  logprobs_.assign(tokens, std::numeric_limits<double>::quiet_NaN());
  entropies_ = logprobs_;
  kept_.assign(tokens, 0.0);
}

std::span<const double> TokenFigures::part(const std::vector<double>& values, std::size_t group,
                                           std::size_t response) const {
  const std::size_t i = first_response_[group] + response;
  return std::span(values).subspan(begins_[i], begins_[i + 1] - begins_[i]);
}

std::span<const double> TokenFigures::logprobs(std::size_t group, std::size_t response) const {
  return part(logprobs_, group, response);
}

std::span<const double> TokenFigures::entropies(std::size_t group, std::size_t response) const {
  return part(entropies_, group, response);
}

void TokenFigures::keep(const PackedBatch& microbatch, std::span<const double> logprobs,
                        std::span<const double> entropies) {
  for (std::size_t i = 0; i < microbatch.edges.size(); ++i) {
    const PredictionEdge& edge = microbatch.edges[i];
    const std::size_t token =
        place_of(static_cast<std::size_t>(edge.group), static_cast<std::size_t>(edge.response)) +
        static_cast<std::size_t>(edge.offset);
    logprobs_[token] = logprobs[i];
    entropies_[token] = entropies[i];
    kept_[token] += 1.0;
  }
}

void TokenFigures::gather(Stream& stream, Communicator& replicas, std::span<const Group> groups,
                          EdgeTokens edges) {
  std::vector<std::size_t> tokens;  // those with an edge
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t r = 0; r < groups[g].responses.size(); ++r) {
      const Response& response = groups[g].responses[r];
      for (std::size_t t = 0; t < response.ids.size(); ++t)
        if (has_edge(response, t, edges)) tokens.push_back(place_of(g, r) + t);
    }
  const std::size_t count = tokens.size();
  std::vector<double> figures(3 * count, 0.0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t token = tokens[i];
    if (kept_[token] == 0.0) continue;  // what stands there is of an earlier pass
    figures[i] = logprobs_[token];
    figures[count + i] = entropies_[token];
    figures[2 * count + i] = kept_[token];
  }
  if (replicas.size() > 1 && count > 0) {
    replicas.all_reduce(stream, host_view(figures.data(), {std::ssize(figures)}), ReduceOp::kSum);
    stream.synchronize();
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double times = figures[2 * count + i];
    COPPICE_CHECK(times == 1.0, "token {} of {} with an edge was computed {} times", i, count,
                  times);
    logprobs_[tokens[i]] = figures[i];
    entropies_[tokens[i]] = figures[count + i];
  }
  kept_.assign(kept_.size(), 0.0);
}

}  // namespace coppice
