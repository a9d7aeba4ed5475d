// See the header. Lists are filled into memory that the caller leased; nothing is allocated.
#include "attention/cpu/prefix_attention_walks.hpp"

#include <algorithm>

namespace coppice::cpu {

std::int64_t part_of(std::int64_t place, std::int64_t parts) {
  const auto p = place % (2 * parts);
  return p < parts ? p : 2 * parts - 1 - p;
}

void list_places(const AttentionPlan& plan, const TileSizes& sizes,
                 std::span<std::int64_t> places) {
  std::fill(places.begin(), places.end(), -1);
  const auto keys = plan.key_ranges();
  for (const QueryRange& range : plan.query_ranges()) {
    std::int64_t before = 0;
    const auto visit = [&](std::int32_t index) {
      const auto key = static_cast<std::size_t>(index);
      if (places[key] < 0) places[key] = before;
      before += key_tiles(keys[key], sizes).count();
    };
    for (const auto key : range.full) visit(key);
    if (range.square != QueryRange::kNoSquare) visit(range.square);
  }
  for (auto& place : places) place = std::max<std::int64_t>(place, 0);  // nobody sees it
}

std::int64_t query_tile_count(const AttentionPlan& plan, const TileSizes& sizes) {
  std::int64_t count = 0;
  for (const QueryRange& range : plan.query_ranges()) {
    count += divide_up(range.length, sizes.query_rows);
  }
  return count;
}

void list_query_tiles(const AttentionPlan& plan, const TileSizes& sizes,
                      std::span<std::int64_t> first_tile, std::span<QueryTile> tiles) {
  std::int64_t next = 0;
  for (std::size_t q = 0; q < first_tile.size(); ++q) {
    const QueryRange& range = plan.query_ranges()[q];
    first_tile[q] = next;
    for (std::int64_t at = 0; at < range.length; at += sizes.query_rows) {
      tiles[static_cast<std::size_t>(next++)] = {range.begin + at,
                                                 std::min(sizes.query_rows, range.length - at)};
    }
  }
}

void list_walks(const AttentionPlan& plan, const TileSizes& sizes,
                std::span<const std::int64_t> places, std::span<Walk> walks) {
  for (std::size_t i = 0; i < walks.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    walks[i] = {index / sizes.dq_parts, index % sizes.dq_parts, 0};
  }
  for (std::size_t r = 0; r < places.size(); ++r) {
    const KeyRange& range = plan.key_ranges()[r];
    const EvenTiles tiles = key_tiles(range, sizes);
    for (std::int64_t t = 0; t < tiles.count(); ++t) {
      std::int64_t rows = 0;
      for (const QueryRun& run : range.runs) {
        rows += run.mask == Mask::kFull ? run.length : run.length - t * tiles.size;
      }
      const auto part = part_of(places[r] + t, sizes.dq_parts);
      for (Walk& walk : walks) {
        if (walk.part == part) walk.cost += rows * tiles.length(t * tiles.size);
      }
    }
  }
  std::sort(walks.begin(), walks.end(), [](const Walk& a, const Walk& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.part < b.part;
  });
}

}  // namespace coppice::cpu
