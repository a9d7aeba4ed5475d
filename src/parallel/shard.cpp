#include "parallel/shard.hpp"

namespace coppice {

Shard Shard::whole(Shape shape) {
  Shape origin = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) origin = origin.with(axis, 0);
  return {shape, origin, shape};
}

Shard Shard::along(Shape global_shape, int axis, std::int64_t begin, std::int64_t count) {
  COPPICE_CHECK(begin >= 0 && count >= 0 && begin + count <= global_shape[axis],
                "entries {} to {} of axis {} of {}", begin, begin + count, axis, global_shape);
  Shard shard = whole(global_shape);
  shard.global_offset = shard.global_offset.with(axis, begin);
  shard.local_shape = shard.local_shape.with(axis, count);
  return shard;
}

}  // namespace coppice
