#include "core/shape.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace coppice {

Shape::Shape(std::span<const std::int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  COPPICE_CHECK(rank_ <= kMaxRank, "a shape of rank {} (at most {})", rank_, kMaxRank);
  for (auto extent : extents) COPPICE_CHECK(extent >= 0, "a negative extent {}", extent);
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (auto extent : extents()) product *= extent;
  return product;
}

Shape Shape::with(int axis, std::int64_t extent) const {
  COPPICE_CHECK(axis >= 0 && axis < rank_, "axis {} of a shape of rank {}", axis, rank_);
  Shape result = *this;
  result.extents_[static_cast<std::size_t>(axis)] = extent;
  return result;
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents(), ", ")); }

}  // namespace coppice
