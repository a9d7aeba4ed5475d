// See the header. Lists are made again for each call: some microseconds, while the device works.
#include "attention/cuda/prefix_attention_work.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.hpp"

namespace coppice::cuda {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

void check_rows(const AttentionPlan& plan) {
  std::int64_t most = plan.query_rows();
  for (std::int32_t s = 0; s < plan.space_count(); ++s) most = std::max(most, plan.space_rows(s));
  COPPICE_CHECK(most <= std::numeric_limits<std::int32_t>::max() / 2,
                "{} rows (kernels count rows in 32 bits)", most);
}

/// Items ordered by falling cost; equal ones keep their order.
template <class Item>
void sort_longest_first(std::vector<Item>& items, const std::vector<std::int64_t>& costs) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<Item> sorted;
  sorted.reserve(items.size());
  for (const auto i : order) sorted.push_back(items[i]);
  items = std::move(sorted);
}

/// What the rows of a key tile, `key` rows into its range, see of the range's runs.
std::vector<QueryPiece> pieces_of(const KeyRange& range, std::int64_t key, std::int64_t key_rows) {
  std::vector<QueryPiece> pieces;
  for (const QueryRun& run : range.runs) {
    if (run.mask == Mask::kFull) {
      pieces.push_back({narrow(run.begin), narrow(run.length), narrow(key_rows)});
    } else {
      // Row `key` of the square is the first that sees a key of the tile.
      pieces.push_back({narrow(run.begin + key), narrow(run.length - key), 0});
    }
  }
  return pieces;
}

/// Cuts pieces into `parts` lists of about the same number of rows, at whole query tiles.
std::vector<std::vector<QueryPiece>> split(const std::vector<QueryPiece>& pieces,
                                           std::int64_t parts, std::int64_t tile) {
  std::int64_t tiles = 0;
  for (const QueryPiece& p : pieces) tiles += divide_up(p.rows, tile);
  const auto most = std::max<std::int64_t>(1, divide_up(tiles, parts));
  std::vector<std::vector<QueryPiece>> lists(1);
  std::int64_t room = most;  // tiles that the last list still takes
  for (QueryPiece p : pieces) {
    while (p.rows > 0) {
      if (room == 0) {
        lists.emplace_back();
        room = most;
      }
      const auto rows = narrow(std::min<std::int64_t>(p.rows, room * tile));
      lists.back().push_back({p.begin, rows, p.lead});
      room -= divide_up(rows, tile);
      p = {p.begin + rows, p.rows - rows, p.lead + rows};
    }
  }
  return lists;
}

}  // namespace

QueryWork list_query_work(const AttentionPlan& plan, std::int64_t tile_rows) {
  check_rows(plan);
  QueryWork work;
  std::vector<std::int64_t> costs;
  const auto keys = plan.key_ranges();
  for (const QueryRange& range : plan.query_ranges()) {
    for (std::int64_t at = 0; at < range.length; at += tile_rows) {
      const auto rows = std::min(tile_rows, range.length - at);
      const auto first = std::ssize(work.pieces);
      std::int64_t cost = 0;
      const auto add = [&](std::int32_t space, std::int64_t begin, std::int64_t length,
                           bool causal) {
        if (length == 0) return;
        work.pieces.push_back({space, narrow(begin), narrow(length), causal ? 1 : 0});
        cost += length;
      };
      for (const auto index : range.full) {
        const KeyRange& key = keys[static_cast<std::size_t>(index)];
        add(key.space, key.begin, key.length, false);
      }
      if (range.square != QueryRange::kNoSquare) {
        const KeyRange& square = keys[static_cast<std::size_t>(range.square)];
        add(square.space, square.begin, at, false);  // left of the tile's own square
        add(square.space, square.begin + at, rows, true);
      }
      work.items.push_back({narrow(range.begin + at), narrow(rows), narrow(first),
                            narrow(std::ssize(work.pieces) - first)});
      costs.push_back(cost);
    }
  }
  sort_longest_first(work.items, costs);
  return work;
}

KeyWork list_key_work(const AttentionPlan& plan, std::span<const char> learns,
                      const KeyTiling& tiling) {
  check_rows(plan);
  KeyWork work;
  std::vector<std::int64_t> costs;
  for (const KeyRange& range : plan.key_ranges()) {
    if (!learns[static_cast<std::size_t>(range.space)]) continue;
    const auto tiles = divide_up(range.length, tiling.key_rows);
    const auto wanted = divide_up(tiling.blocks_wanted, tiles * tiling.kv_heads);
    for (std::int64_t at = 0; at < range.length; at += tiling.key_rows) {
      const auto rows = std::min(tiling.key_rows, range.length - at);
      const auto pieces = pieces_of(range, at, tiling.key_rows);
      std::int64_t seen = 0;
      for (const QueryPiece& p : pieces) seen += p.rows;
      const auto parts =
          std::clamp(seen * tiling.heads / tiling.least_rows, std::int64_t{1}, wanted);
      const auto lists = split(pieces, parts, tiling.query_rows);
      if (lists.size() > 1) {
        work.sums.push_back({range.space, narrow(range.begin + at), narrow(rows), work.slots,
                             narrow(std::ssize(lists))});
      }
      for (const auto& list : lists) {
        work.items.push_back({range.space, narrow(range.begin + at), narrow(rows),
                              narrow(std::ssize(work.pieces)), narrow(std::ssize(list)),
                              lists.size() > 1 ? work.slots++ : KeyItem::kWhole});
        work.pieces.insert(work.pieces.end(), list.begin(), list.end());
        std::int64_t cost = 0;
        for (const QueryPiece& p : list) cost += divide_up(p.rows, tiling.query_rows);
        costs.push_back(cost);
      }
    }
  }
  sort_longest_first(work.items, costs);
  return work;
}

}  // namespace coppice::cuda
