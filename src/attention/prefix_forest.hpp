#pragma once
// Who descends from whom among the packed rows of a micro-batch. A forest is data made once on the
// host; what attention does with it is compiled from it (attention_plan.hpp), and which row
// predicts which token is listed beside it (prediction_edges.hpp).
#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

/// One segment as asked for. `parent` is the index of an earlier segment, -1 makes a root.
struct SegmentSpec {
  std::int64_t length;
  std::int32_t parent;
};

/// One segment as laid out.
struct Segment {
  std::int64_t begin;               // first packed row
  std::int64_t length;              // may be 0 (an empty response)
  std::int64_t end_of_descendants;  // one past the last row of the segment and all below it
  std::int32_t parent;              // -1: a root
  std::int64_t first_position;      // position id of its first row: its ancestors' lengths

  std::int64_t end() const { return begin + length; }
};

/// Segments of packed token rows, depth first. A row sees all rows of its ancestor segments and
/// the rows of its own segment up to itself.
///
/// Layout    segments in packed order; the descendants of a segment are the rows right behind it
/// Errors    ContractError for a negative length, or an order that is not depth first
class PrefixForest {
 public:
  PrefixForest() = default;
  explicit PrefixForest(std::span<const SegmentSpec> specs);

  std::int64_t rows() const { return rows_; }
  std::span<const Segment> segments() const { return segments_; }
  /// Position id of every row.
  std::vector<std::int32_t> positions() const;
  /// Pairs (row, row that it sees), itself included.
  std::int64_t visible_pairs() const;

 private:
  std::vector<Segment> segments_;
  std::int64_t rows_ = 0;
};

}  // namespace coppice
