// The walk over segments that makes prediction edges; see the header for the rules.
#include "attention/prediction_edges.hpp"

#include <algorithm>
#include <tuple>

#include "core/error.hpp"

namespace coppice {
namespace {

/// The last row of the nearest ancestor that has rows; -1 if there is none.
std::int64_t row_before(const PrefixForest& forest, const Segment& segment) {
  const auto segments = forest.segments();
  for (std::int32_t i = segment.parent; i >= 0; i = segments[static_cast<std::size_t>(i)].parent) {
    const Segment& ancestor = segments[static_cast<std::size_t>(i)];
    if (ancestor.length > 0) return ancestor.end() - 1;
  }
  return -1;
}

}  // namespace

std::vector<PredictionEdge> prediction_edges(const PrefixForest& forest,
                                             std::span<const std::int32_t> token_ids,
                                             std::span<const SegmentTargets> targets) {
  const auto segments = forest.segments();
  COPPICE_CHECK(std::ssize(token_ids) == forest.rows(), "{} token ids for {} rows",
                token_ids.size(), forest.rows());
  COPPICE_CHECK(targets.size() == segments.size(), "targets of {} segments for {} segments",
                targets.size(), segments.size());
  std::vector<PredictionEdge> edges;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const SegmentTargets& wanted = targets[s];
    if (wanted.first_target == SegmentTargets::kNone) continue;
    const auto count = segment.length - wanted.first_target;
    COPPICE_CHECK(wanted.first_target >= 0 && count >= 0,
                  "segment {} of {} tokens has targets from token {} on", s, segment.length,
                  wanted.first_target);
    COPPICE_CHECK(wanted.is_target.empty() || std::ssize(wanted.is_target) == count,
                  "segment {} has {} target flags for {} tokens", s, wanted.is_target.size(),
                  count);
    for (std::int64_t i = 0; i < count; ++i) {
      if (!wanted.is_target.empty() && wanted.is_target[static_cast<std::size_t>(i)] == 0) continue;
      const auto token = wanted.first_target + i;
      const auto row = token > 0 ? segment.begin + token - 1 : row_before(forest, segment);
      COPPICE_CHECK(row >= 0,
                    "token 0 of segment {} is a target, but no row comes before it (a prefix must "
                    "have at least one token)",
                    s);
      edges.push_back({row, token_ids[static_cast<std::size_t>(segment.begin + token)],
                       wanted.group, wanted.response,
                       wanted.first_offset + static_cast<std::int32_t>(i)});
    }
  }
  std::sort(edges.begin(), edges.end(), [](const PredictionEdge& a, const PredictionEdge& b) {
    return std::tie(a.row, a.group, a.response, a.offset) <
           std::tie(b.row, b.group, b.response, b.offset);
  });
  return edges;
}

}  // namespace coppice
