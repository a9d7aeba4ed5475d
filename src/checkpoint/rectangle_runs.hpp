#pragma once
// A rectangle of a tensor as runs: stretches of elements that lie side by side both in the
// rectangle and in the whole tensor.
#include <cstdint>
#include <functional>

#include "parallel/shard.hpp"

namespace coppice {

struct ElementRun {
  std::int64_t local;   ///< first element, counted from the first of the rows asked for
  std::int64_t global;  ///< its row-major index in the whole tensor
  std::int64_t count;
};

/// Calls `body` for each run of rows [row_begin, row_begin + row_count) (axis 0) of a rectangle, in
/// order. Runs are as long as they can be: whole rows are one run.
void for_each_run(const Shard& shard, std::int64_t row_begin, std::int64_t row_count,
                  const std::function<void(const ElementRun&)>& body);

}  // namespace coppice
