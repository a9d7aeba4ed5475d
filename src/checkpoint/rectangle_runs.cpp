#include "checkpoint/rectangle_runs.hpp"

namespace coppice {

void for_each_run(const Shard& shard, std::int64_t row_begin, std::int64_t row_count,
                  const std::function<void(const ElementRun&)>& body) {
  const int rank = shard.global_shape.rank();
  if (rank == 0) return body({0, 0, row_count});
  const Shape rows = shard.local_shape.with(0, row_count);
  if (rows.numel() == 0) return;
  // A run takes the last axis, and each axis before it while those behind are whole.
  int first = rank - 1;
  std::int64_t run = rows[first];
  while (first > 0 && rows[first] == shard.global_shape[first]) run *= rows[--first];
  const std::int64_t runs = rows.numel() / run;
  for (std::int64_t r = 0; r < runs; ++r) {
    std::int64_t rest = r, index = 0, stride = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      std::int64_t at = shard.global_offset[axis] + (axis == 0 ? row_begin : 0);
      if (axis < first) {
        at += rest % rows[axis];
        rest /= rows[axis];
      }
      index += at * stride;
      stride *= shard.global_shape[axis];
    }
    body({r * run, index, run});
  }
}

}  // namespace coppice
