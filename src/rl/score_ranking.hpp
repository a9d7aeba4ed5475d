#pragma once
// Which of a group's candidates a model holds for likely: the responses of one context in order of
// their log-probs, summed and per token. Log-probs are the scorer's; how they are shown is
// launch/'s.
#include <cstdint>
#include <span>
#include <vector>

#include "rl/rollout_writer.hpp"

namespace coppice {

/// One response among those of its group.
///
/// Units     natural logarithms
struct RankedCandidate {
  std::int64_t response;
  std::int64_t tokens;
  double sum = 0.0;   ///< of the log-probs of its tokens: of the response as a whole
  double mean = 0.0;  ///< per token, which does not favour short responses
  std::int64_t by_sum = 0, by_mean = 0;  ///< places from 1
};

/// In the order of the responses. Equal figures keep that order; responses without tokens, which no
/// figure says anything of, come last in both.
///
/// Oracle    tests/rl/score_ranking_test.cpp
std::vector<RankedCandidate> rank_candidates(std::span<const ResponseScores> group);

}  // namespace coppice
