#include "parallel/shard.hpp"

namespace coppice {

Shard Shard::whole(Shape shape) {
  Shape origin = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) origin = origin.with(axis, 0);
  return {shape, origin, shape};
}

}  // namespace coppice
