#pragma once
// Which row predicts which token, as an explicit list. The head runs on the rows of this list and
// the losses give each entry its coefficients; neither knows how the rows were packed.
#include <cstdint>
#include <span>
#include <vector>

#include "attention/prefix_forest.hpp"

namespace coppice {

/// The packed row `row` predicts the token `target`.
struct PredictionEdge {
  std::int64_t row;
  std::int32_t target;    // token id
  std::int32_t group;     // as given for the target's segment
  std::int32_t response;  // index in its group
  std::int32_t offset;    // token index in the response

  friend bool operator==(const PredictionEdge&, const PredictionEdge&) = default;
};

/// What the tokens of one segment are to the loss. A prompt has no targets: leave the defaults. A
/// prompt and its response in one segment (repeated packing) have first_target = prompt's length.
struct SegmentTargets {
  static constexpr std::int64_t kNone = -1;

  std::int32_t group = 0;
  std::int32_t response = 0;
  std::int64_t first_target = kNone;          // token of the segment that may first be a target
  std::int32_t first_offset = 0;              // that token's index in the response
  std::span<const std::uint8_t> is_target{};  // flags from first_target on; empty: all are targets
};

/// Lists the edges of a micro-batch, sorted by row; edges of one row by group, response, offset.
/// Token 0 of a segment is predicted by the last row of its parent (of the nearest ancestor that
/// has rows), so the last row of a prefix predicts the first token of every response.
///
/// Shapes    token_ids [rows]   targets: one entry per segment
/// Errors    ContractError if sizes disagree, or a target has no row before it
std::vector<PredictionEdge> prediction_edges(const PrefixForest& forest,
                                             std::span<const std::int32_t> token_ids,
                                             std::span<const SegmentTargets> targets);

}  // namespace coppice
