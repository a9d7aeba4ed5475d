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
  /// Entries [begin, begin + count) of one axis; count may be 0.
  ///
  /// Errors    ContractError if they leave the axis
  static Shard along(Shape global_shape, int axis, std::int64_t begin, std::int64_t count);
  friend bool operator==(const Shard&, const Shard&) = default;
};

}  // namespace coppice
