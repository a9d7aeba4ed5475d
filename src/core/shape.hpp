#pragma once
// The extents of a tensor: at most four, kept inside the value.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/error.hpp"

namespace coppice {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents)
      : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const {
    COPPICE_CHECK(axis >= 0 && axis < rank_, "axis {} of a shape of rank {}", axis, rank_);
    return extents_[static_cast<std::size_t>(axis)];
  }
  std::int64_t back() const { return (*this)[rank_ - 1]; }
  /// Product of the extents; 1 for rank 0.
  std::int64_t numel() const;
  Shape with(int axis, std::int64_t extent) const;
  std::span<const std::int64_t> extents() const {
    return {extents_.data(), static_cast<std::size_t>(rank_)};
  }
  friend bool operator==(const Shape& a, const Shape& b) = default;

  /// "[2, 3]"
  std::string to_string() const;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};  // unused ones stay 0, so == may compare all
  int rank_ = 0;
};

}  // namespace coppice

template <>
struct fmt::formatter<coppice::Shape> : fmt::formatter<std::string> {
  auto format(const coppice::Shape& shape, fmt::format_context& ctx) const {
    return fmt::formatter<std::string>::format(shape.to_string(), ctx);
  }
};
