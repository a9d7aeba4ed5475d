#pragma once
// How sums over rows are cut on a CUDA device: a function of the row count only, so that the order
// of a sum depends neither on the device nor on the schedule. Passed to kernels by value.
#include <algorithm>
#include <cstdint>

namespace coppice::cuda {

struct RowBlocks {
  std::int64_t rows;
  std::int64_t rows_per_block;

  // Never more than 256 blocks: two for each processor of a large GPU, and partial sums stay small.
  explicit RowBlocks(std::int64_t row_count)
      : rows(row_count), rows_per_block(std::max<std::int64_t>(8, (row_count + 255) / 256)) {}

  std::int64_t count() const { return (rows + rows_per_block - 1) / rows_per_block; }
};

}  // namespace coppice::cuda
