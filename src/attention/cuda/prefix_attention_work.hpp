#pragma once
// What the blocks of a launch do, worked out on the host from a plan: tiles of query rows with the
// keys that they see, tiles of key rows with the queries that see them, longest first. Kernels walk
// these lists and know no plan. Everything is counted in rows; heads are the launch's second axis.
#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_plan.hpp"

namespace coppice::cuda {

/// Key rows [begin, +rows) of a space, seen by all rows of a query tile or, if `causal`, by the
/// tile's row i up to key i. 16 bytes, read by kernels in one load.
struct alignas(16) KeyPiece {
  std::int32_t space, begin, rows, causal;
  friend bool operator==(const KeyPiece&, const KeyPiece&) = default;
};

/// A tile of query rows and its pieces of keys [first_piece, +pieces).
struct alignas(16) QueryItem {
  std::int32_t row, rows, first_piece, pieces;
  friend bool operator==(const QueryItem&, const QueryItem&) = default;
};

struct QueryWork {
  std::vector<QueryItem> items;
  std::vector<KeyPiece> pieces;
};

/// Tiles of at most `tile_rows` query rows, cut from the beginning of each query range, so that how
/// a row's sums are made does not depend on siblings or other groups.
///
/// Errors    ContractError if rows do not fit 32 bits
QueryWork list_query_work(const AttentionPlan& plan, std::int64_t tile_rows);

/// Query rows [begin, +rows). Row i of them sees key j of a key tile if j <= i + lead.
struct alignas(16) QueryPiece {
  std::int32_t begin, rows, lead, unused = 0;
  friend bool operator==(const QueryPiece&, const QueryPiece&) = default;
};

/// A tile of key rows and pieces of queries that see it.
struct alignas(16) KeyItem {
  static constexpr std::int32_t kWhole = -1;

  std::int32_t space, begin, rows, first_piece, pieces;
  std::int32_t slot;  // where its partial sum goes, or kWhole: all queries are here
  std::int32_t unused[2] = {};
};

/// A key tile whose queries are split over several items: their slots are added in order.
struct alignas(16) SlotSum {
  std::int32_t space, begin, rows, first_slot, slots;
  std::int32_t unused[3] = {};
};

struct KeyWork {
  std::vector<KeyItem> items;
  std::vector<QueryPiece> pieces;
  std::vector<SlotSum> sums;
  std::int32_t slots = 0;
};

/// How key tiles are cut and their queries split. A prompt of a few key tiles may be seen by many
/// thousand rows; without a split a few blocks would work while the others have nothing to do.
struct KeyTiling {
  std::int64_t key_rows;    // of a tile
  std::int64_t query_rows;  // of the tiles that an item walks over; splits are whole ones
  std::int64_t heads;       // query heads of one key-value head: each shows the tile all its rows
  std::int64_t kv_heads;    // blocks of one key tile

  /// A key range is split until it makes this many blocks (two for each processor of the largest
  /// devices) ...
  std::int64_t blocks_wanted = 288;
  /// ... but never below this many rows times heads for one item: writing and adding up a partial
  /// sum must stay small beside making it.
  std::int64_t least_rows = 2048;
};

/// Key ranges of spaces with learns[space], those that nobody sees included. How a range is tiled
/// and split follows from that range alone.
KeyWork list_key_work(const AttentionPlan& plan, std::span<const char> learns,
                      const KeyTiling& tiling);

}  // namespace coppice::cuda
