#pragma once
// Which rank of a context-parallel group computes which packed rows. Made identically on every rank
// from the same forest, so nobody sends tokens; what must be sent are the keys and values of shared
// rows, and this says which rows those are.
#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_plan.hpp"
#include "attention/prefix_forest.hpp"

namespace coppice {

/// What one row and one visible pair cost, in any common unit (FLOPs of a layer).
struct RowCosts {
  double row = 1.0;
  double pair = 1.0;
};

/// A run of packed rows of one segment that one rank owns.
struct RowRun {
  static constexpr std::int64_t kNotShared = -1;

  std::int64_t begin;         // packed row
  std::int64_t length;        // never 0
  std::int32_t segment;       // of the forest
  std::int32_t rank;          // its owner
  std::int64_t local_begin;   // first row among the owner's rows
  std::int64_t shared_begin;  // first row among the gathered rows, or kNotShared
};

/// Segments with children are cut into 2 x ranks pieces, dealt out in zigzag so that causal work
/// balances; leaf segments go whole to ranks, largest cost first, each to the least loaded. Where
/// that leaves the fullest rank more than `kImbalance` above the mean, its largest leaf is cut like
/// a prefix, and so on.
///
///   A row is *shared* when a rank that does not own it has a row that sees it.
///
/// Layout    each rank keeps packed order; gathered rows are stacked by owner, then packed order
/// Errors    ContractError if ranks < 1
/// Repeats   a function of its arguments only
/// Oracle    tests/attention/row_partition_test.cpp, the mask row by row
class RowPartition {
 public:
  static constexpr double kImbalance = 0.05;

  RowPartition(const PrefixForest& forest, int ranks, const RowCosts& costs);

  int ranks() const { return static_cast<int>(rank_rows_.size()); }
  /// In packed order.
  std::span<const RowRun> runs() const { return runs_; }
  /// Number of rows of each rank, and of those the shared ones.
  std::span<const std::int64_t> rank_rows() const { return rank_rows_; }
  std::span<const std::int64_t> rank_shared_rows() const { return rank_shared_rows_; }
  std::span<const double> rank_costs() const { return rank_costs_; }
  std::int64_t shared_rows() const;
  /// Packed row of each row of a rank.
  std::vector<std::int64_t> rows_of(int rank) const;
  /// The plan of one rank: key space 0 its own rows, key space 1 the gathered rows (only where a
  /// row is shared at all). `alignment_rows` more rows at its end see only themselves.
  AttentionPlan plan_of(int rank, std::int64_t alignment_rows = 0) const;
  /// Local rows of a rank that it hands to the others, as runs in the order of gathering.
  std::vector<RowRun> shared_runs_of(int rank) const;

 private:
  std::vector<RowRun> runs_;
  std::vector<std::int32_t> parents_;  // of each segment
  std::vector<std::int64_t> rank_rows_, rank_shared_rows_;
  std::vector<double> rank_costs_;
};

}  // namespace coppice
