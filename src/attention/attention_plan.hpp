#pragma once
// Who sees whom, compiled to lists of rectangles. Attention kernels know nothing else: every mask
// is "full rectangle" or "causal square", and a plan made from a forest, from the rows of a rank
// under context parallelism, or for new rows over a kept cache runs through the same code.
#include <cstdint>
#include <span>
#include <vector>

#include "attention/prefix_forest.hpp"

namespace coppice {

enum class Mask : std::uint8_t {
  kFull,    // every query row of the rectangle sees every key row
  kCausal,  // a square: query row i sees key rows 0 to i
};

/// Query rows [query_begin, +query_rows) see key rows [key_begin, +key_rows) of a key space.
struct PlanRectangle {
  std::int64_t query_begin;
  std::int64_t query_rows;
  std::int32_t space;
  std::int64_t key_begin;
  std::int64_t key_rows;
  Mask mask;
};

/// A run of query rows. All of them see the same key ranges in full; then each sees the square's
/// key range up to its own place in it.
struct QueryRange {
  static constexpr std::int32_t kNoSquare = -1;

  std::int64_t begin;
  std::int64_t length;
  std::int32_t square = kNoSquare;   // index of a key range of the same length
  std::vector<std::int32_t> full{};  // indices of key ranges, by space and row
};

/// A run of query rows that see one key range.
struct QueryRun {
  std::int64_t begin;
  std::int64_t length;
  Mask mask;
};

/// A run of key rows of one space. All query rows behind it see either all of it or none of it,
/// but for the causal square.
struct KeyRange {
  std::int32_t space;
  std::int64_t begin;
  std::int64_t length;
  std::vector<QueryRun> runs{};  // by query row; those seeing it in full joined where they touch
};

/// Query rows need not be key rows: a plan counts rows of each in their own numbering and names key
/// *spaces* (own rows, rows gathered from other ranks, rows kept from an earlier forward). Each
/// range of a space lies in one key range, each query row in one query range, seen or not.
///
/// Repeats   ranges of a forest are its segments, so how a group is cut into tiles does not depend
///           on the groups or siblings beside it
class AttentionPlan {
 public:
  AttentionPlan() = default;
  /// One key space: the forest's own rows.
  explicit AttentionPlan(const PrefixForest& forest);
  /// Any rectangles. Ranges are cut where rectangles begin or end.
  ///
  /// Errors    ContractError if a rectangle leaves its rows, a pair is seen twice, a causal
  ///           rectangle is not square, or another rectangle begins or ends inside of one
  AttentionPlan(std::int64_t query_rows, std::span<const std::int64_t> space_rows,
                std::span<const PlanRectangle> rectangles);

  std::int64_t query_rows() const { return query_rows_; }
  std::int32_t space_count() const { return static_cast<std::int32_t>(space_rows_.size()); }
  std::int64_t space_rows(std::int32_t space) const {
    return space_rows_[static_cast<std::size_t>(space)];
  }
  std::int64_t visible_pairs() const { return visible_pairs_; }
  /// Both by row, none empty. Key ranges of space 0 come first, then those of space 1, ...
  std::span<const QueryRange> query_ranges() const { return query_ranges_; }
  std::span<const KeyRange> key_ranges() const { return key_ranges_; }

 private:
  std::int64_t query_rows_ = 0;
  std::vector<std::int64_t> space_rows_;
  std::vector<QueryRange> query_ranges_;
  std::vector<KeyRange> key_ranges_;
  std::int64_t visible_pairs_ = 0;
};

}  // namespace coppice
