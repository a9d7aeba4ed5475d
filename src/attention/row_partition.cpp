#include "attention/row_partition.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace coppice {
namespace {

/// Cost of `length` rows from `offset` of a segment whose first position is `first_position`.
double cost_of(const Segment& segment, std::int64_t offset, std::int64_t length,
               const RowCosts& costs) {
  const auto n = static_cast<double>(length);
  const auto before = static_cast<double>(segment.first_position + offset);
  return costs.row * n + costs.pair * (n * before + n * (n + 1) / 2);
}

/// The rank of piece `piece` of 2 x ranks: 0 1 2 2 1 0.
int zigzag_rank(int piece, int ranks) { return piece < ranks ? piece : 2 * ranks - 1 - piece; }

class Dealer {
 public:
  Dealer(const PrefixForest& forest, int ranks, const RowCosts& costs)
      : segments_(forest.segments()),
        ranks_(ranks),
        costs_(costs),
        owner_(segments_.size(), kCut),
        load_(static_cast<std::size_t>(ranks), 0.0) {
    std::vector<bool> is_leaf(segments_.size(), true);
    for (const Segment& segment : segments_) {
      if (segment.parent >= 0) is_leaf[static_cast<std::size_t>(segment.parent)] = false;
    }
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (is_leaf[s]) leaves_.push_back(s);
    }
    std::stable_sort(leaves_.begin(), leaves_.end(),
                     [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
    deal();
    while (ranks > 1 && cut_largest_leaf_of_fullest_rank()) deal();
  }

  std::vector<RowRun> runs() const {
    std::vector<RowRun> runs;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for_each_piece(s, [&](std::int64_t offset, std::int64_t length, int rank) {
        const bool joins = !runs.empty() && runs.back().segment == static_cast<std::int32_t>(s) &&
                           runs.back().rank == rank;
        if (joins) {
          runs.back().length += length;
        } else {
          runs.push_back({segments_[s].begin + offset, length, static_cast<std::int32_t>(s), rank,
                          0, RowRun::kNotShared});
        }
      });
    }
    return runs;
  }
  const std::vector<double>& load() const { return load_; }

 private:
  static constexpr int kCut = -1;  // owner of a segment that is cut into pieces

  double cost(std::size_t s) const { return cost_of(segments_[s], 0, segments_[s].length, costs_); }

  template <class F>
  void for_each_piece(std::size_t s, F&& f) const {
    const auto length = segments_[s].length;
    if (length == 0) return;
    if (owner_[s] != kCut) return f(std::int64_t{0}, length, owner_[s]);
    const int pieces = 2 * ranks_;
    for (int piece = 0; piece < pieces; ++piece) {
      const auto begin = length * piece / pieces, end = length * (piece + 1) / pieces;
      if (end > begin) f(begin, end - begin, zigzag_rank(piece, ranks_));
    }
  }

  void deal() {
    std::fill(load_.begin(), load_.end(), 0.0);
    for (const std::size_t s : leaves_) {
      if (!is_cut(s)) owner_[s] = 0;  // dealt again below
    }
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (owner_[s] != kCut) continue;
      for_each_piece(s, [&](std::int64_t offset, std::int64_t length, int rank) {
        load_[static_cast<std::size_t>(rank)] += cost_of(segments_[s], offset, length, costs_);
      });
    }
    for (const std::size_t s : leaves_) {
      if (is_cut(s)) continue;
      const auto least = std::min_element(load_.begin(), load_.end());
      *least += cost(s);
      owner_[s] = static_cast<int>(least - load_.begin());
    }
  }

  bool cut_largest_leaf_of_fullest_rank() {
    const auto fullest = std::max_element(load_.begin(), load_.end());
    const double mean = std::accumulate(load_.begin(), load_.end(), 0.0) / ranks_;
    if (*fullest <= mean * (1 + RowPartition::kImbalance)) return false;
    for (const std::size_t s : leaves_) {  // largest first
      if (is_cut(s) || segments_[s].length < 2) continue;
      if (owner_[s] != static_cast<int>(fullest - load_.begin())) continue;
      cut_.push_back(s);
      owner_[s] = kCut;
      return true;
    }
    return false;
  }

  bool is_cut(std::size_t s) const { return std::find(cut_.begin(), cut_.end(), s) != cut_.end(); }

  std::span<const Segment> segments_;
  int ranks_;
  RowCosts costs_;
  std::vector<int> owner_;  // of each segment
  std::vector<std::size_t> leaves_, cut_;
  std::vector<double> load_;
};

}  // namespace

RowPartition::RowPartition(const PrefixForest& forest, int ranks, const RowCosts& costs)
    : rank_rows_(static_cast<std::size_t>(std::max(ranks, 0)), 0),
      rank_shared_rows_(rank_rows_.size(), 0) {
  COPPICE_CHECK(ranks >= 1, "rows parted over {} ranks", ranks);
  const Dealer dealer(forest, ranks, costs);
  runs_ = dealer.runs();
  rank_costs_ = dealer.load();
  for (const Segment& segment : forest.segments()) parents_.push_back(segment.parent);

  for (RowRun& run : runs_) {
    auto& rows = rank_rows_[static_cast<std::size_t>(run.rank)];
    run.local_begin = rows;
    rows += run.length;
  }
  // Rows that see a run are the later rows of its segment and all descendants: what is packed
  // behind it, up to the end of its descendants.
  std::vector<bool> shared(runs_.size(), false);
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const auto& segment = forest.segments()[static_cast<std::size_t>(runs_[i].segment)];
    for (std::size_t j = i + 1; j < runs_.size() && runs_[j].begin < segment.end_of_descendants;
         ++j) {
      if (runs_[j].rank != runs_[i].rank) {
        shared[i] = true;
        break;
      }
    }
  }
  std::int64_t gathered = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!shared[i] || runs_[i].rank != rank) continue;
      runs_[i].shared_begin = gathered;
      gathered += runs_[i].length;
      rank_shared_rows_[static_cast<std::size_t>(rank)] += runs_[i].length;
    }
  }
}

std::int64_t RowPartition::shared_rows() const {
  return std::accumulate(rank_shared_rows_.begin(), rank_shared_rows_.end(), std::int64_t{0});
}

std::vector<std::int64_t> RowPartition::rows_of(int rank) const {
  std::vector<std::int64_t> rows;
  for (const RowRun& run : runs_) {
    if (run.rank != rank) continue;
    for (std::int64_t i = 0; i < run.length; ++i) rows.push_back(run.begin + i);
  }
  return rows;
}

std::vector<RowRun> RowPartition::shared_runs_of(int rank) const {
  std::vector<RowRun> runs;
  for (const RowRun& run : runs_) {
    if (run.rank == rank && run.shared_begin != RowRun::kNotShared) runs.push_back(run);
  }
  return runs;
}

AttentionPlan RowPartition::plan_of(int rank, std::int64_t alignment_rows) const {
  constexpr std::int32_t kOwn = 0, kGathered = 1;
  std::vector<PlanRectangle> rectangles;
  const auto is_ancestor = [&](std::int32_t segment, std::int32_t of) {
    for (auto s = parents_[static_cast<std::size_t>(of)]; s >= 0;
         s = parents_[static_cast<std::size_t>(s)]) {
      if (s == segment) return true;
    }
    return false;
  };
  for (std::size_t q = 0; q < runs_.size(); ++q) {
    const RowRun& query = runs_[q];
    if (query.rank != rank) continue;
    const auto see = [&](std::int32_t space, std::int64_t key_begin, const RowRun& key, Mask mask) {
      rectangles.push_back({query.local_begin, query.length, space, key_begin, key.length, mask});
    };
    for (std::size_t k = 0; k < q; ++k) {
      const RowRun& key = runs_[k];
      if (key.segment != query.segment && !is_ancestor(key.segment, query.segment)) continue;
      if (key.rank == rank) {
        see(kOwn, key.local_begin, key, Mask::kFull);
      } else {
        see(kGathered, key.shared_begin, key, Mask::kFull);
      }
    }
    see(kOwn, query.local_begin, query, Mask::kCausal);
  }
  const auto own = rank_rows_[static_cast<std::size_t>(rank)];
  for (std::int64_t i = 0; i < alignment_rows; ++i) {
    rectangles.push_back({own + i, 1, kOwn, own + i, 1, Mask::kCausal});
  }
  std::vector<std::int64_t> spaces{own + alignment_rows};
  if (shared_rows() > 0) spaces.push_back(shared_rows());
  return {own + alignment_rows, spaces, rectangles};
}

}  // namespace coppice
