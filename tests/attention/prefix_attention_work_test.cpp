// The lists of work of the CUDA kernels, against the mask pair by pair: every visible pair belongs
// to exactly one piece, whatever the tiles and splits. Made and tested on the host, in every build.
#include "attention/cuda/prefix_attention_work.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attention/support.hpp"

namespace coppice {
namespace {

using cuda::KeyItem;
using cuda::KeyPiece;
using cuda::KeyTiling;
using cuda::KeyWork;
using cuda::QueryItem;
using cuda::QueryPiece;
using cuda::QueryWork;
using testing::ElementsAre;

using Seen = std::vector<std::vector<int>>;

Seen nothing(std::int64_t queries, std::int64_t keys) {
  return Seen(static_cast<std::size_t>(queries), std::vector<int>(static_cast<std::size_t>(keys)));
}

int& at(Seen& seen, std::int64_t query, std::int64_t key) {
  return seen[static_cast<std::size_t>(query)][static_cast<std::size_t>(key)];
}

template <class T>
const T& item(const std::vector<T>& list, std::int64_t i) {
  return list[static_cast<std::size_t>(i)];
}

/// How often each pair of one space is computed.
Seen computed(const QueryWork& work, std::int64_t queries, std::int64_t keys) {
  Seen seen = nothing(queries, keys);
  for (const QueryItem& tile : work.items) {
    for (int p = 0; p < tile.pieces; ++p) {
      const KeyPiece& piece = item(work.pieces, tile.first_piece + p);
      for (int i = 0; i < tile.rows; ++i) {
        for (int j = 0; j < (piece.causal != 0 ? i + 1 : piece.rows); ++j) {
          ++at(seen, tile.row + i, piece.begin + j);
        }
      }
    }
  }
  return seen;
}

Seen computed(const KeyWork& work, std::int64_t queries, std::int64_t keys) {
  Seen seen = nothing(queries, keys);
  for (const KeyItem& tile : work.items) {
    for (int p = 0; p < tile.pieces; ++p) {
      const QueryPiece& piece = item(work.pieces, tile.first_piece + p);
      for (int i = 0; i < piece.rows; ++i) {
        for (int j = 0; j < tile.rows; ++j) {
          if (j <= i + piece.lead) ++at(seen, piece.begin + i, tile.begin + j);
        }
      }
    }
  }
  return seen;
}

KeyWork key_work(const AttentionPlan& plan, const KeyTiling& tiling) {
  const std::vector<char> all(static_cast<std::size_t>(plan.space_count()), 1);
  return list_key_work(plan, all, tiling);
}

// Mutations seen: the square's keys left of a tile's own square forgotten; a causal run that begins
// at the square's first row for every key tile; a split that leaves its second piece's lead.
TEST(PrefixAttentionWork, ComputesEachVisiblePairOnce) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto tree = test::random_tree(seed, 8, seed % 3 == 0 ? 70 : 12);
    const auto forest = test::forest_of(tree);
    const AttentionPlan plan(forest);
    const auto mask = reference::visibility(tree);
    for (const std::int64_t tile : {1, 4, 16, 64}) {
      EXPECT_EQ(computed(cuda::list_query_work(plan, tile), forest.rows(), forest.rows()), mask)
          << "seed " << seed << ", query tiles of " << tile;
      for (const std::int64_t least : {1, 9, 1000}) {
        const KeyTiling tiling{.key_rows = tile,
                               .query_rows = tile == 64 ? 16 : 2 * tile,
                               .heads = 2,
                               .kv_heads = 2,
                               .blocks_wanted = 40,
                               .least_rows = least};
        EXPECT_EQ(computed(key_work(plan, tiling), forest.rows(), forest.rows()), mask)
            << "seed " << seed << ", key tiles of " << tile << ", splits of " << least;
      }
    }
  }
}

// Prompt of 3 rows, responses of 2 and 1; tiles of 2 queries. Costs are keys: the second response's
// row sees 3 + 1, the first's two rows 3 + 2, the prompt's 2 and 2 + 1.
TEST(PrefixAttentionWork, ListsQueryTilesWorkedByHandLongestFirst) {
  const auto work = cuda::list_query_work(AttentionPlan(test::group(3, {2, 1})), 2);
  EXPECT_THAT(work.items, ElementsAre(QueryItem{3, 2, 3, 2}, QueryItem{5, 1, 5, 2},
                                      QueryItem{2, 1, 1, 2}, QueryItem{0, 2, 0, 1}));
  EXPECT_THAT(work.pieces,
              ElementsAre(KeyPiece{0, 0, 2, 1}, KeyPiece{0, 0, 2, 0}, KeyPiece{0, 2, 1, 1},
                          KeyPiece{0, 0, 3, 0}, KeyPiece{0, 3, 2, 1}, KeyPiece{0, 0, 3, 0},
                          KeyPiece{0, 5, 1, 1}));
}

// One key tile of 4 rows, seen by itself and by 20 rows behind it: 24 rows in tiles of 4 are 6
// tiles, two for each of three splits.
TEST(PrefixAttentionWork, SplitsTheQueriesOfAKeyTileAtWholeTiles) {
  const auto work = key_work(AttentionPlan(test::group(4, {20})), {.key_rows = 4,
                                                                   .query_rows = 4,
                                                                   .heads = 1,
                                                                   .kv_heads = 1,
                                                                   .blocks_wanted = 3,
                                                                   .least_rows = 8});
  ASSERT_EQ(work.sums.size(), 1u);
  EXPECT_EQ(work.slots, 3);
  EXPECT_EQ(work.sums[0].first_slot, 0);
  EXPECT_EQ(work.sums[0].slots, 3);
  std::vector<std::vector<QueryPiece>> by_slot(3);
  for (const KeyItem& tile : work.items) {
    if (tile.slot == KeyItem::kWhole) continue;
    EXPECT_EQ(tile.begin, 0);
    for (int p = 0; p < tile.pieces; ++p) {
      by_slot[static_cast<std::size_t>(tile.slot)].push_back(
          item(work.pieces, tile.first_piece + p));
    }
  }
  EXPECT_THAT(by_slot[0], ElementsAre(QueryPiece{0, 4, 0}, QueryPiece{4, 4, 4}));
  EXPECT_THAT(by_slot[1], ElementsAre(QueryPiece{8, 8, 8}));
  EXPECT_THAT(by_slot[2], ElementsAre(QueryPiece{16, 8, 16}));
}

TEST(PrefixAttentionWork, SplitsNoFurtherThanBlocksAreWanted) {
  const AttentionPlan plan(test::group(256, {3000, 3000}));
  KeyTiling tiling{.key_rows = 128, .query_rows = 32, .heads = 4, .kv_heads = 8};
  // Two key tiles and 8 heads are 16 blocks; 288 are wanted, which is 18 for each. But 2048 rows
  // times heads must be left to an item: 6256 * 4 rows see the first tile, 6128 * 4 the second.
  const auto of_prompt = [](const KeyWork& work) {
    return std::count_if(work.items.begin(), work.items.end(),
                         [](const KeyItem& tile) { return tile.begin < 256; });
  };
  EXPECT_EQ(of_prompt(key_work(plan, tiling)), 12 + 11);
  tiling.blocks_wanted = 64;
  EXPECT_EQ(of_prompt(key_work(plan, tiling)), 2 * 4);
  tiling.blocks_wanted = 16;
  const auto whole = key_work(plan, tiling);
  EXPECT_EQ(of_prompt(whole), 2);
  EXPECT_EQ(whole.slots, 0);
}

// Mutation seen: the shortest first.
TEST(PrefixAttentionWork, PutsTheLongestFirst) {
  const AttentionPlan plan(test::group(300, {100, 70, 1, 0, 200}));
  const auto cost = [](const auto& tile, const auto& pieces, int unit) {
    int sum = 0;
    for (int p = 0; p < tile.pieces; ++p) {
      sum += (item(pieces, tile.first_piece + p).rows + unit - 1) / unit;
    }
    return sum;
  };
  const auto queries = cuda::list_query_work(plan, 64);
  for (std::size_t i = 1; i < queries.items.size(); ++i) {
    EXPECT_GE(cost(queries.items[i - 1], queries.pieces, 1),
              cost(queries.items[i], queries.pieces, 1));
  }
  const auto keys = key_work(plan, {.key_rows = 64, .query_rows = 32, .heads = 1, .kv_heads = 1});
  for (std::size_t i = 1; i < keys.items.size(); ++i) {
    EXPECT_GE(cost(keys.items[i - 1], keys.pieces, 32), cost(keys.items[i], keys.pieces, 32));
  }
}

// Mutation seen: all spaces learn.
TEST(PrefixAttentionWork, ListsKeysThatNobodySeesAndLeavesOutSpacesThatDoNotLearn) {
  const std::vector<std::int64_t> space_rows{10, 5};
  const std::vector<PlanRectangle> rectangles{{2, 3, 0, 4, 2, Mask::kFull},
                                              {2, 3, 1, 0, 3, Mask::kCausal}};
  const AttentionPlan plan(7, space_rows, rectangles);
  const KeyTiling tiling{.key_rows = 64, .query_rows = 32, .heads = 1, .kv_heads = 1};
  const auto rows_of = [&](const std::vector<char>& learns) {
    std::vector<std::int64_t> rows(2);
    for (const KeyItem& tile : list_key_work(plan, learns, tiling).items) {
      rows[static_cast<std::size_t>(tile.space)] += tile.rows;
    }
    return rows;
  };
  EXPECT_THAT(rows_of({1, 1}), ElementsAre(10, 5));
  EXPECT_THAT(rows_of({0, 1}), ElementsAre(0, 5));
  // Rows that see nothing have a tile too.
  std::int64_t queries = 0;
  for (const QueryItem& tile : cuda::list_query_work(plan, 64).items) queries += tile.rows;
  EXPECT_EQ(queries, 7);
}

// What a row's sums are made of, from the beginning of its range: siblings and groups beside it
// must not change it. Mutation seen: the blocks that are wanted shared out among all key ranges.
TEST(PrefixAttentionWork, TilesOfASegmentDoNotDependOnTheOthers) {
  const KeyTiling tiling{.key_rows = 16,
                         .query_rows = 8,
                         .heads = 3,
                         .kv_heads = 1,
                         .blocks_wanted = 40,
                         .least_rows = 32};
  const auto shape = [](const KeyWork& work, std::int64_t begin, std::int64_t length) {
    std::vector<std::vector<int>> tiles;
    for (const KeyItem& tile : work.items) {
      if (tile.begin < begin || tile.begin >= begin + length) continue;
      std::vector<int> key{tile.begin - static_cast<int>(begin), tile.rows, tile.slot >= 0};
      for (int p = 0; p < tile.pieces; ++p) {
        const QueryPiece& piece = item(work.pieces, tile.first_piece + p);
        key.insert(key.end(), {piece.begin - static_cast<int>(begin), piece.rows, piece.lead});
      }
      tiles.push_back(key);
    }
    std::sort(tiles.begin(), tiles.end());
    return tiles;
  };
  const auto alone = key_work(AttentionPlan(test::forest_of({{50, -1}, {70, 0}})), tiling);
  const auto among = key_work(
      AttentionPlan(test::forest_of({{37, -1}, {500, 0}, {50, -1}, {70, 2}, {90, -1}})), tiling);
  EXPECT_EQ(shape(alone, 0, 120), shape(among, 537, 120));
}

}  // namespace
}  // namespace coppice
