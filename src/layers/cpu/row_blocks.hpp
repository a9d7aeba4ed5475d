#pragma once
// How sums over rows are cut so that their order does not depend on the thread count: blocks that
// are a function of the row count only, summed one after the other.
#include <algorithm>
#include <cstdint>

namespace coppice::cpu {

struct RowBlocks {
  std::int64_t rows;
  std::int64_t rows_per_block;

  // At least 16 rows a block, and never more than 64 blocks, so that partial sums stay small.
  explicit RowBlocks(std::int64_t row_count)
      : rows(row_count), rows_per_block(std::max<std::int64_t>(16, (row_count + 63) / 64)) {}

  std::int64_t count() const { return (rows + rows_per_block - 1) / rows_per_block; }
  std::int64_t begin(std::int64_t block) const { return block * rows_per_block; }
  std::int64_t end(std::int64_t block) const {
    return std::min(rows, (block + 1) * rows_per_block);
  }
};

}  // namespace coppice::cpu
