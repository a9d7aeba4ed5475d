#include "checkpoint/rectangle_bytes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/layout.hpp"
#include "checkpoint/rectangle_runs.hpp"

namespace coppice {
namespace {

// Two pages; and a piece holds many rows, and every run.
constexpr std::int64_t kLargestPitch = 8 << 10, kPieceBytes = 256 << 10;

}  // namespace

RectangleBytes::RectangleBytes(const Shard& shard, std::int64_t element_bytes, ReadBytes read)
    : shard_(shard), width_(element_bytes), read_(std::move(read)) {
  const std::int64_t whole_row = layout::row_elements(shard.global_shape);
  cuts_out_ =
      layout::row_elements(shard.local_shape) != whole_row && whole_row * width_ <= kLargestPitch;
}

void RectangleBytes::read(std::int64_t row_begin, std::int64_t row_count, std::byte* target) {
  if (!cuts_out_) {
    for_each_run(shard_, row_begin, row_count, [&](const ElementRun& run) {
      read_(run.global * width_,
            {target + run.local * width_, static_cast<std::size_t>(run.count * width_)});
    });
    return;
  }
  // Nothing is fetched beyond the last run of these rows.
  std::int64_t end = 0;
  for_each_run(shard_, row_begin + row_count - 1, 1,
               [&](const ElementRun& run) { end = (run.global + run.count) * width_; });
  std::int64_t piece_begin = 0, piece_end = 0;
  for_each_run(shard_, row_begin, row_count, [&](const ElementRun& run) {
    const std::int64_t begin = run.global * width_, bytes = run.count * width_;
    if (begin + bytes > piece_end) {
      piece_begin = begin;
      piece_end = std::min(begin + kPieceBytes, end);
      piece_.resize(kPieceBytes);
      read_(piece_begin, std::span(piece_).first(static_cast<std::size_t>(piece_end - begin)));
    }
    std::memcpy(target + run.local * width_, piece_.data() + (begin - piece_begin),
                static_cast<std::size_t>(bytes));
  });
}

}  // namespace coppice
