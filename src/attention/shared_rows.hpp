#pragma once
// Which rows' keys and values context-parallel ranks exchange, once per layer: a row is shared when
// a rank that does not own it has a row that sees it (row_partition.hpp).
#include <cstdint>
#include <numeric>
#include <vector>

namespace coppice {

/// Layout    gathered rows are stacked by context rank, then in packed order
struct SharedRows {
  std::vector<std::int64_t> rows;       // local rows this rank hands out, in gathering order
  std::vector<std::int64_t> rank_rows;  // how many each context rank hands out; empty: none do

  bool any() const { return !rank_rows.empty(); }
  std::int64_t total() const {
    return std::accumulate(rank_rows.begin(), rank_rows.end(), std::int64_t{0});
  }
};

}  // namespace coppice
