#include "parallel/row_share.hpp"

#include <algorithm>

namespace coppice {

RowRange intersection(const RowRange& a, const RowRange& b) {
  const auto begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

RowRange RowShare::of(std::int64_t rows) const {
  COPPICE_CHECK(size >= 1 && rank >= 0 && rank < size, "place {} of {}", rank, size);
  return {rows * rank / size, rows * (rank + 1) / size};
}

std::vector<std::int64_t> RowShare::counts(std::int64_t rows) const {
  std::vector<std::int64_t> counts;
  for (int place = 0; place < size; ++place) {
    counts.push_back(RowShare{place, size}.of(rows).count());
  }
  return counts;
}

RowRange row_range_of(const ParameterPart& part) {
  return {part.row_begin, part.row_begin + part.shard.local_shape[0]};
}

std::vector<RowRange> primary_rows(const Parameter& parameter, const RowRange& rows) {
  std::vector<RowRange> ranges;
  for (const ParameterPart& part : parameter.parts) {
    if (!part.is_primary) continue;
    const RowRange range = intersection(row_range_of(part), rows);
    if (range.count() == 0) continue;
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

}  // namespace coppice
