// Layout of segments in depth-first order. A parent must still be open when its child comes: on the
// path from a root to the segment before it.
#include "attention/prefix_forest.hpp"

#include "core/error.hpp"

namespace coppice {

PrefixForest::PrefixForest(std::span<const SegmentSpec> specs) {
  segments_.reserve(specs.size());
  std::vector<std::int32_t> open;  // the path from a root to the latest segment
  const auto close_down_to = [&](std::int32_t parent) {
    while (!open.empty() && open.back() != parent) {
      segments_[static_cast<std::size_t>(open.back())].end_of_descendants = rows_;
      open.pop_back();
    }
  };
  for (const SegmentSpec& spec : specs) {
    const auto index = static_cast<std::int32_t>(segments_.size());
    COPPICE_CHECK(spec.length >= 0, "segment {} has length {}", index, spec.length);
    COPPICE_CHECK(spec.parent >= -1 && spec.parent < index,
                  "segment {} has parent {} (a parent is an earlier segment, or -1)", index,
                  spec.parent);
    close_down_to(spec.parent);
    COPPICE_CHECK(spec.parent == -1 || !open.empty(),
                  "segment {} comes after its parent {} was left (segments are stored depth first)",
                  index, spec.parent);
    Segment segment{rows_, spec.length, rows_ + spec.length, spec.parent, 0};
    if (spec.parent >= 0) {
      const Segment& parent = segments_[static_cast<std::size_t>(spec.parent)];
      segment.first_position = parent.first_position + parent.length;
    }
    segments_.push_back(segment);
    open.push_back(index);
    rows_ += spec.length;
  }
  close_down_to(-1);
}

std::vector<std::int32_t> PrefixForest::positions() const {
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(rows_));
  for (const Segment& segment : segments_) {
    for (std::int64_t i = 0; i < segment.length; ++i) {
      positions.push_back(static_cast<std::int32_t>(segment.first_position + i));
    }
  }
  return positions;
}

std::int64_t PrefixForest::visible_pairs() const {
  std::int64_t pairs = 0;
  for (const Segment& segment : segments_) {
    pairs += segment.length * segment.first_position + segment.length * (segment.length + 1) / 2;
  }
  return pairs;
}

}  // namespace coppice
