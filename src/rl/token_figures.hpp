#pragma once
// Log-prob and entropy of response tokens, as the model gives them micro-batch by micro-batch and
// rank by rank. Under data and context parallelism a rank computes some of them; gathering makes
// them whole on every rank, so that whatever is made of them has the same bits everywhere.
#include <cstdint>
#include <span>
#include <vector>

#include "core/stream.hpp"
#include "model/packed_batch.hpp"
#include "parallel/communicator.hpp"
#include "rl/packing.hpp"
#include "rl/rollouts.hpp"

namespace coppice {

/// Units     natural logarithms; nats. NaN where nothing was kept
class TokenFigures {
 public:
  TokenFigures() = default;
  explicit TokenFigures(std::span<const Group> groups);

  /// [ids] of a response.
  std::span<const double> logprobs(std::size_t group, std::size_t response) const;
  std::span<const double> entropies(std::size_t group, std::size_t response) const;

  /// Keeps the figures of a micro-batch's edges.
  void keep(const PackedBatch& microbatch, std::span<const double> logprobs,
            std::span<const double> entropies);

  /// Ends a pass: every rank gets what the others kept since the last one.
  ///
  /// Parallel  one all-reduce of gather_bytes() over `replicas` (the ranks that hold the same
  ///           tensor shard), none on one rank; summing with zeros changes no bit
  /// Errors    ContractError where a token that has an edge was computed not exactly once
  void gather(Stream& stream, Communicator& replicas, std::span<const Group> groups,
              EdgeTokens edges);

  /// What one rank hands in for `tokens` tokens with an edge.
  static constexpr std::int64_t gather_bytes(std::int64_t tokens) {
    return tokens * 3 * static_cast<std::int64_t>(sizeof(double));
  }

 private:
  std::size_t place_of(std::size_t group, std::size_t response) const {
    return begins_[first_response_[group] + response];
  }
  std::span<const double> part(const std::vector<double>& values, std::size_t group,
                               std::size_t response) const;

  std::vector<std::size_t> first_response_;  // of each group
  std::vector<std::size_t> begins_;          // of each response, and the end
  std::vector<double> logprobs_, entropies_;
  std::vector<double> kept_;  // how often, since the last gather
};

}  // namespace coppice
