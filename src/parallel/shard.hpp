#pragma once
// Which rectangle of a logical tensor a rank holds.
#include "core/shape.hpp"

namespace coppice {

struct Shard {
  Shape global_shape;
  Shape global_offset;
  Shape local_shape;

  /// The whole tensor on one rank.
  static Shard whole(Shape shape);
  friend bool operator==(const Shard&, const Shard&) = default;
};

}  // namespace coppice
