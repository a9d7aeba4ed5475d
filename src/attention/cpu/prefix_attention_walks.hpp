#pragma once
// Who does what in the backward: key tiles dealt out to parts, tiles of query rows, and the walks
// that are the pieces of work. Everything here follows from the plan alone.
#include <span>

#include "attention/cpu/prefix_attention_tiles.hpp"

namespace coppice::cpu {

inline EvenTiles key_tiles(const KeyRange& range, const TileSizes& sizes) {
  return {range.length, TileSizes::kBackwardKeys, sizes.query_rows};
}

/// The part that the key tile at `place` along its path belongs to: 0 1 2 2 1 0 0 1 2 ... Under a
/// causal mask later tiles are seen by fewer rows; going back and forth evens that out.
std::int64_t part_of(std::int64_t place, std::int64_t parts);

/// How many key tiles lie before each key range on the path of the rows that see it.
void list_places(const AttentionPlan& plan, const TileSizes& sizes, std::span<std::int64_t> places);

/// Rows that are shown to keys together.
struct QueryTile {
  std::int64_t row, rows;
};
std::int64_t query_tile_count(const AttentionPlan& plan, const TileSizes& sizes);
/// `first_tile` is where each query range's tiles begin in the list.
void list_query_tiles(const AttentionPlan& plan, const TileSizes& sizes,
                      std::span<std::int64_t> first_tile, std::span<QueryTile> tiles);

/// All key tiles of one head and part.
struct Walk {
  std::int64_t kv_head, part, cost;
};
/// Longest first.
void list_walks(const AttentionPlan& plan, const TileSizes& sizes,
                std::span<const std::int64_t> places, std::span<Walk> walks);

}  // namespace coppice::cpu
