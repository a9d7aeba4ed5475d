#include "core/arena.hpp"

#include <algorithm>

namespace coppice {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kAliasing = 4096;

std::int64_t row_stride(DType dtype, std::int64_t columns) {
  const auto bytes = columns * size_of(dtype);
  return columns + (bytes > 0 && bytes % kAliasing == 0 ? kAlignment / size_of(dtype) : 0);
}

}  // namespace

std::int64_t Arena::leased_bytes(DType dtype, const Shape& shape) {
  const auto bytes = shape.numel() * size_of(dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t Arena::matrix_bytes(DType dtype, std::int64_t rows, std::int64_t columns) {
  return leased_bytes(dtype, {rows, row_stride(dtype, columns)});
}

TensorView Arena::matrix(DType dtype, std::int64_t rows, std::int64_t columns) {
  return lease(dtype, {rows, row_stride(dtype, columns)}).columns(0, columns);
}

TensorView Arena::lease(DType dtype, Shape shape) {
  const auto bytes = leased_bytes(dtype, shape);
  while (current_ < blocks_.size() &&
         blocks_[current_].used + bytes > blocks_[current_].buffer.bytes()) {
    if (current_ + 1 == blocks_.size()) break;
    ++current_;
  }
  if (blocks_.empty() || blocks_[current_].used + bytes > blocks_[current_].buffer.bytes()) {
    blocks_.push_back({memory_->allocate(bytes, name_)});
    current_ = blocks_.size() - 1;
  }
  Block& block = blocks_[current_];
  std::byte* data = block.buffer.data() + block.used;
  block.used += bytes;
  total_ += bytes;
  high_water_ = std::max(high_water_, total_);
  memory_->poison(data, bytes);
  return {data, dtype, shape, memory_->device()};
}

void Arena::reset() {
  release_to({0, 0, 0});
  if (blocks_.size() > 1) {
    blocks_.clear();
    reserve(high_water_);
  }
}

void Arena::reserve(std::int64_t bytes) {
  COPPICE_CHECK(total_ == 0, "{}: room reserved while {} bytes are leased", name_, total_);
  if (blocks_.size() == 1 && blocks_[0].buffer.bytes() >= bytes) return;
  blocks_.clear();
  if (bytes > 0) blocks_.push_back({memory_->allocate(bytes, name_)});
  current_ = 0;
}

Arena::Mark Arena::mark() const {
  return {current_, blocks_.empty() ? 0 : blocks_[current_].used, total_};
}

void Arena::release_to(const Mark& mark) {
  for (std::size_t i = mark.block; i < blocks_.size(); ++i) {
    blocks_[i].used = i == mark.block ? mark.used : 0;
  }
  current_ = mark.block;
  total_ = mark.total;
  // A scratch arena is never reset by its users: it settles into one block whenever it is empty.
  if (total_ == 0 && blocks_.size() > 1) {
    blocks_.clear();
    current_ = 0;
    blocks_.push_back({memory_->allocate(high_water_, name_)});
  }
}

}  // namespace coppice
