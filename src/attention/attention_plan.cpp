// Compiles rectangles to ranges: rows are cut wherever a rectangle begins or ends, so that every
// rectangle becomes a set of whole (query range, key range) pairs.
#include "attention/attention_plan.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace coppice {
namespace {

/// Sorted places at which rows [0, rows) are cut, both ends included.
class Cuts {
 public:
  explicit Cuts(std::int64_t rows) : places_{0, rows} {}
  void add(std::int64_t begin, std::int64_t length) {
    places_.push_back(begin);
    places_.push_back(begin + length);
  }
  void sort() {
    std::sort(places_.begin(), places_.end());
    places_.erase(std::unique(places_.begin(), places_.end()), places_.end());
  }
  std::size_t pieces() const { return places_.size() - 1; }
  std::int64_t begin(std::size_t piece) const { return places_[piece]; }
  std::int64_t length(std::size_t piece) const { return places_[piece + 1] - places_[piece]; }
  /// Index of the piece that begins at `place`, or the number of pieces at the end.
  std::size_t at(std::int64_t place) const {
    return static_cast<std::size_t>(std::lower_bound(places_.begin(), places_.end(), place) -
                                    places_.begin());
  }

 private:
  std::vector<std::int64_t> places_;
};

std::vector<PlanRectangle> rectangles_of(const PrefixForest& forest) {
  std::vector<PlanRectangle> rectangles;
  for (const Segment& s : forest.segments()) {
    rectangles.push_back({s.begin, s.length, 0, s.begin, s.length, Mask::kCausal});
    rectangles.push_back(
        {s.end(), s.end_of_descendants - s.end(), 0, s.begin, s.length, Mask::kFull});
  }
  return rectangles;
}

void check(const PlanRectangle& r, std::int64_t query_rows,
           std::span<const std::int64_t> space_rows) {
  COPPICE_CHECK(
      r.query_begin >= 0 && r.query_rows >= 0 && r.query_begin + r.query_rows <= query_rows,
      "rectangle of query rows {}+{} in {} rows", r.query_begin, r.query_rows, query_rows);
  COPPICE_CHECK(r.space >= 0 && r.space < std::ssize(space_rows), "rectangle in key space {} of {}",
                r.space, space_rows.size());
  const auto keys = space_rows[static_cast<std::size_t>(r.space)];
  COPPICE_CHECK(r.key_begin >= 0 && r.key_rows >= 0 && r.key_begin + r.key_rows <= keys,
                "rectangle of key rows {}+{} in {} rows of space {}", r.key_begin, r.key_rows, keys,
                r.space);
  COPPICE_CHECK(r.mask == Mask::kFull || r.query_rows == r.key_rows,
                "a causal rectangle of {} query rows and {} key rows (it must be square)",
                r.query_rows, r.key_rows);
}

}  // namespace

AttentionPlan::AttentionPlan(const PrefixForest& forest)
    : AttentionPlan(forest.rows(), std::vector<std::int64_t>{forest.rows()},
                    rectangles_of(forest)) {}

AttentionPlan::AttentionPlan(std::int64_t query_rows, std::span<const std::int64_t> space_rows,
                             std::span<const PlanRectangle> rectangles)
    : query_rows_(query_rows), space_rows_(space_rows.begin(), space_rows.end()) {
  Cuts query_cuts(query_rows);
  std::vector<Cuts> key_cuts(space_rows.begin(), space_rows.end());
  std::vector<PlanRectangle> used;
  for (const PlanRectangle& r : rectangles) {
    check(r, query_rows, space_rows);
    if (r.query_rows == 0 || r.key_rows == 0) continue;
    used.push_back(r);
    query_cuts.add(r.query_begin, r.query_rows);
    key_cuts[static_cast<std::size_t>(r.space)].add(r.key_begin, r.key_rows);
    visible_pairs_ +=
        r.mask == Mask::kFull ? r.query_rows * r.key_rows : r.key_rows * (r.key_rows + 1) / 2;
  }
  // In the order of rows, every list below comes out sorted by itself.
  std::stable_sort(used.begin(), used.end(), [](const PlanRectangle& a, const PlanRectangle& b) {
    if (a.space != b.space) return a.space < b.space;
    if (a.key_begin != b.key_begin) return a.key_begin < b.key_begin;
    return a.query_begin < b.query_begin;
  });

  query_cuts.sort();
  for (std::size_t i = 0; i < query_cuts.pieces(); ++i) {
    query_ranges_.push_back({query_cuts.begin(i), query_cuts.length(i)});
  }
  std::vector<std::size_t> first_range;  // of each space
  for (std::size_t space = 0; space < key_cuts.size(); ++space) {
    key_cuts[space].sort();
    first_range.push_back(key_ranges_.size());
    for (std::size_t i = 0; i < key_cuts[space].pieces(); ++i) {
      key_ranges_.push_back(
          {static_cast<std::int32_t>(space), key_cuts[space].begin(i), key_cuts[space].length(i)});
    }
  }

  for (const PlanRectangle& r : used) {
    const auto space = static_cast<std::size_t>(r.space);
    const auto q_first = query_cuts.at(r.query_begin);
    const auto q_end = query_cuts.at(r.query_begin + r.query_rows);
    const auto k_first = first_range[space] + key_cuts[space].at(r.key_begin);
    const auto k_end = first_range[space] + key_cuts[space].at(r.key_begin + r.key_rows);
    if (r.mask == Mask::kCausal) {
      COPPICE_CHECK(q_end == q_first + 1 && k_end == k_first + 1,
                    "a rectangle begins or ends inside the causal square at query row {}, key row "
                    "{} of space {} (cut the square there)",
                    r.query_begin, r.key_begin, r.space);
    }
    for (auto k = k_first; k < k_end; ++k) {
      key_ranges_[k].runs.push_back({r.query_begin, r.query_rows, r.mask});
      for (auto q = q_first; q < q_end; ++q) {
        QueryRange& range = query_ranges_[q];
        const auto index = static_cast<std::int32_t>(k);
        if (r.mask == Mask::kCausal) {
          COPPICE_CHECK(range.square == QueryRange::kNoSquare,
                        "query row {} lies in two causal squares", range.begin);
          range.square = index;
        } else {
          range.full.push_back(index);
        }
      }
    }
  }

  for (QueryRange& range : query_ranges_) {
    std::sort(range.full.begin(), range.full.end());
    COPPICE_CHECK(std::adjacent_find(range.full.begin(), range.full.end()) == range.full.end() &&
                      !std::binary_search(range.full.begin(), range.full.end(), range.square),
                  "query row {} sees a key row twice", range.begin);
  }
  for (KeyRange& range : key_ranges_) {
    std::vector<QueryRun> joined;
    std::sort(range.runs.begin(), range.runs.end(),
              [](const QueryRun& a, const QueryRun& b) { return a.begin < b.begin; });
    for (const QueryRun& run : range.runs) {
      if (!joined.empty() && joined.back().mask == Mask::kFull && run.mask == Mask::kFull &&
          joined.back().begin + joined.back().length == run.begin) {
        joined.back().length += run.length;
      } else {
        joined.push_back(run);
      }
    }
    range.runs = std::move(joined);
  }
}

}  // namespace coppice
