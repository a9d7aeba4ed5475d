// Backward, key-stationary: one owner per key tile and key-value head walks the rows that see it in
// a fixed order and sums dk and dv; nothing is added atomically. The same walk gives dq its part
// from this key tile, so scores are recomputed once. Key tiles are dealt out to a few *parts* by
// their place on the path from the root; each part has a dq of its own, and these are summed in
// order at the end. The deal depends on a row's ancestors only: not on siblings, groups or threads.
#include <algorithm>
#include <array>
#include <numbers>

#include "attention/cpu/prefix_attention_walks.hpp"
#include "attention/prefix_attention.hpp"
#include "core/parallel_for.hpp"

namespace coppice::cpu {
namespace {

/// Everything that is leased, and how large it is. Stacked tensors are [Hkv, T * heads, D], or
/// without the D.
struct Sizes {
  Sizes(const AttentionPlan& plan, std::int64_t num_attention_heads, std::int64_t num_kv_heads,
        std::int64_t head_dim, int threads)
      : tile(num_attention_heads, num_kv_heads),
        kv_heads(num_kv_heads),
        dim(head_dim),
        stacked(plan.query_rows() * tile.heads),
        all(stacked * kv_heads * dim),
        stride(round_up(std::max(TileSizes::kBackwardKeys, tile.query_rows), kTilePadding)),
        score_rows(round_up(tile.stacked_rows(), kTilePadding)),
        per_thread(2 * score_rows * stride + 2 * key_panel_elements(stride, dim) +
                   2 * stride * round_up(dim, kTilePadding)),
        key_ranges(std::ssize(plan.key_ranges())),
        query_ranges(std::ssize(plan.query_ranges())),
        walks(kv_heads * tile.dq_parts),
        query_tiles(query_tile_count(plan, tile)) {
    floats = {all,
              all,
              all * tile.dq_parts,
              stacked * kv_heads,
              stacked * kv_heads,
              per_thread * threads};
    integers = {key_ranges, query_ranges, 2 * query_tiles, 3 * walks, query_tiles * walks};
  }

  TileSizes tile;
  std::int64_t kv_heads, dim;
  std::int64_t stacked;  // rows of one key-value head
  std::int64_t all;      // elements of all stacked rows
  std::int64_t stride, score_rows, per_thread;
  std::int64_t key_ranges, query_ranges, walks, query_tiles;
  std::array<std::int64_t, 6> floats;    // q, d_out, dq parts, lse, delta, own tiles
  std::array<std::int64_t, 5> integers;  // places, first tiles, query tiles, walks, touched
};

/// One call.
template <class T>
class Backward {
 public:
  Backward(ScratchScope& scratch, ExecContext& ctx, const AttentionPlan& plan, const Sizes& sizes,
           std::span<const KeySpace> spaces, std::span<const KeySpaceGrad> grads)
      : ctx_(ctx), plan_(plan), sizes_(sizes), spaces_(spaces), grads_(grads) {
    std::array<std::int64_t*, 5> integers;
    for (std::size_t i = 0; i < integers.size(); ++i) {
      integers[i] = scratch.lease(DType::kI64, {sizes.integers[i]}).data<std::int64_t>();
    }
    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    places_ = {integers[0], count(sizes.key_ranges)};
    first_tile_ = {integers[1], count(sizes.query_ranges)};
    tiles_ = {reinterpret_cast<QueryTile*>(integers[2]), count(sizes.query_tiles)};
    walks_ = {reinterpret_cast<Walk*>(integers[3]), count(sizes.walks)};
    touched_ = {integers[4], count(sizes.integers[4])};
    list_places(plan, sizes.tile, places_);
    list_query_tiles(plan, sizes.tile, first_tile_, tiles_);
    list_walks(plan, sizes.tile, places_, walks_);
    std::fill(touched_.begin(), touched_.end(), 0);
    T** const floats[] = {&q_, &d_out_, &dq_, &lse_, &delta_, &own_};
    for (std::size_t i = 0; i < sizes.floats.size(); ++i) {
      *floats[i] = scratch.lease(kDTypeOf<T>, {sizes.floats[i]}).template data<T>();
    }
  }

  /// Stacks q and d_out and computes delta = rowsum(d_out * out).
  void prepare(ConstTensorView q, ConstTensorView out, ConstTensorView lse, ConstTensorView d_out,
               double scale) {
    for_each_query_tile([&](std::int64_t kv, std::int64_t, const QueryTile& tile) {
      const auto heads = sizes_.tile.heads, rows = tile.rows * heads, dim = sizes_.dim;
      const auto first = kv * sizes_.stacked + tile.row * heads;
      // Scores in units of ln 2, as 2^x is cheaper than e^x.
      stack_rows(at(q, tile.row, kv * heads), q.strides()[0], q.strides()[1], rows, heads, dim,
                 static_cast<T>(scale * std::numbers::log2e), q_ + first * dim);
      stack_rows(at(d_out, tile.row, kv * heads), d_out.strides()[0], d_out.strides()[1], rows,
                 heads, dim, T{1}, d_out_ + first * dim);
      row_dots(at(out, tile.row, kv * heads), out.strides()[0], out.strides()[1],
               d_out_ + first * dim, rows, heads, dim, delta_ + first);
      for (std::int64_t h = 0; h < heads; ++h) {
        const T* from = lse.data<T>() + (kv * heads + h) * lse.strides()[0] + tile.row;
        for (std::int64_t i = 0; i < tile.rows; ++i) {
          lse_[first + i * heads + h] = from[i] * static_cast<T>(std::numbers::log2e);
        }
      }
    });
  }

  void walk_all() {
    parallel_for(ctx_, sizes_.walks, [&](std::int64_t i) {
      const Walk& walk = walks_[static_cast<std::size_t>(i)];
      for (std::size_t r = 0; r < places_.size(); ++r) {
        const EvenTiles tiles = key_tiles(plan_.key_ranges()[r], sizes_.tile);
        for (std::int64_t t = 0; t < tiles.count(); ++t) {
          if (part_of(places_[r] + t, sizes_.tile.dq_parts) != walk.part) continue;
          run_key_tile(walk, plan_.key_ranges()[r], t * tiles.size, tiles.length(t * tiles.size));
        }
      }
    });
  }

  /// Sums the parts of dq that hold something.
  void finish(double scale, TensorView dq) {
    for_each_query_tile([&](std::int64_t kv, std::int64_t index, const QueryTile& tile) {
      const auto heads = sizes_.tile.heads;
      const auto first = (kv * sizes_.stacked + tile.row * heads) * sizes_.dim;
      std::array<const T*, TileSizes::kMaxParts> parts;
      std::int64_t count = 0;
      for (std::int64_t part = 0; part < sizes_.tile.dq_parts; ++part) {
        if (touched(kv, part, index) == 0) continue;
        parts[static_cast<std::size_t>(count++)] = dq_ + part * sizes_.all + first;
      }
      sum_parts(parts.data(), count, tile.rows * heads, heads, sizes_.dim, static_cast<T>(scale),
                at(dq, tile.row, kv * heads), dq.strides()[0], dq.strides()[1]);
    });
  }

 private:
  /// A key tile with its sums.
  struct KeyTile {
    const Walk& walk;
    const T* k;
    std::int64_t k_stride;
    const T *k_panels, *v_panels;
    bool learns;
    T *scores, *d_scores;  // [score_rows, stride]; a tile has at most `stride` keys
    T *dk, *dv;            // [keys, dim]; dk in units of ln 2
  };

  template <class View>
  static auto* at(const View& view, std::int64_t row, std::int64_t head) {
    return view.template data<T>() + row * view.strides()[0] + head * view.strides()[1];
  }

  std::int64_t& touched(std::int64_t kv, std::int64_t part, std::int64_t tile) {
    return touched_[static_cast<std::size_t>(
        (kv * sizes_.tile.dq_parts + part) * sizes_.query_tiles + tile)];
  }

  template <class F>
  void for_each_query_tile(const F& f) {
    parallel_for(ctx_, sizes_.query_tiles * sizes_.kv_heads, [&](std::int64_t i) {
      const auto tile = i % sizes_.query_tiles;
      f(i / sizes_.query_tiles, tile, tiles_[static_cast<std::size_t>(tile)]);
    });
  }

  void run_key_tile(const Walk& walk, const KeyRange& range, std::int64_t begin,
                    std::int64_t length) {
    const auto& [k, v] = spaces_[static_cast<std::size_t>(range.space)];
    const auto& [dk, dv, beta] = grads_[static_cast<std::size_t>(range.space)];
    const auto row = range.begin + begin, dim = sizes_.dim;
    T* scores = own_ + thread_index() * sizes_.per_thread;
    T* d_scores = scores + sizes_.score_rows * sizes_.stride;
    T* k_panels = d_scores + sizes_.score_rows * sizes_.stride;
    T* v_panels = k_panels + key_panel_elements(sizes_.stride, dim);
    T* tile_dk = v_panels + key_panel_elements(sizes_.stride, dim);
    T* tile_dv = tile_dk + sizes_.stride * round_up(dim, kTilePadding);
    const KeyTile tile{walk,           at(k, row, walk.kv_head),
                       k.strides()[0], k_panels,
                       v_panels,       dk.bytes() != nullptr,
                       scores,         d_scores,
                       tile_dk,        tile_dv};
    transpose_keys(tile.k, tile.k_stride, length, dim, k_panels);
    transpose_keys(at(v, row, walk.kv_head), v.strides()[0], length, dim, v_panels);
    std::fill_n(tile_dk, length * dim, T{0});
    std::fill_n(tile_dv, length * dim, T{0});
    show_rows(tile, range, begin, length);
    if (!tile.learns) return;
    const bool add = beta != 0.0;
    write_rows(tile_dk, length, dim, static_cast<T>(std::numbers::ln2), add,
               at(dk, row, walk.kv_head), dk.strides()[0]);
    write_rows(tile_dv, length, dim, T{1}, add, at(dv, row, walk.kv_head), dv.strides()[0]);
  }

  /// Shows the key tile [begin, +length) of `range` to every row that sees it, in packed order.
  void show_rows(const KeyTile& tile, const KeyRange& range, std::int64_t begin,
                 std::int64_t length) {
    const auto queries = plan_.query_ranges();
    const auto step = sizes_.tile.query_rows;
    for (const QueryRun& run : range.runs) {
      auto query =
          std::lower_bound(queries.begin(), queries.end(), run.begin,
                           [](const QueryRange& q, std::int64_t first) { return q.begin < first; });
      for (; query != queries.end() && query->begin < run.begin + run.length; ++query) {
        const bool causal = run.mask == Mask::kCausal;
        const auto first = first_tile_[static_cast<std::size_t>(query - queries.begin())];
        // Key tiles of a square begin where a tile of its rows begins.
        for (auto i = causal ? begin : 0; i < query->length; i += step) {
          const auto index = first + i / step;
          const auto rows = tiles_[static_cast<std::size_t>(index)].rows;
          const bool diagonal = causal && i < begin + length;
          show(tile, index, diagonal ? i - begin : length, diagonal ? rows : 0);
        }
      }
    }
  }

  /// Rows of one query tile see `full` keys, then each its part of a square of `square` keys.
  void show(const KeyTile& tile, std::int64_t index, std::int64_t full, std::int64_t square) {
    const auto& [row, count] = tiles_[static_cast<std::size_t>(index)];
    const auto heads = sizes_.tile.heads, rows = count * heads, dim = sizes_.dim;
    const auto first = tile.walk.kv_head * sizes_.stacked + row * heads;
    const TileShape shape{rows, heads, full, square, sizes_.stride};
    const T* q = q_ + first * dim;
    const T* d_out = d_out_ + first * dim;
    T* dq = dq_ + tile.walk.part * sizes_.all + first * dim;
    std::int64_t& dq_holds = touched(tile.walk.kv_head, tile.walk.part, index);

    score_tile(shape, q, dim, tile.k_panels, 0, tile.scores);
    score_tile(shape, d_out, dim, tile.v_panels, 0, tile.d_scores);
    gradient_tile(shape, lse_ + first, delta_ + first, tile.scores, tile.d_scores);

    if (dq_holds == 0) std::fill_n(dq, rows * dim, T{0});
    dq_holds = 1;
    add_seen(shape, tile.d_scores, tile.k, tile.k_stride, dim, dq);
    if (!tile.learns) return;
    add_seeing(shape, tile.scores, d_out, dim, tile.dv);
    add_seeing(shape, tile.d_scores, q, dim, tile.dk);
  }

  ExecContext& ctx_;
  const AttentionPlan& plan_;
  const Sizes& sizes_;
  std::span<const KeySpace> spaces_;
  std::span<const KeySpaceGrad> grads_;

  std::span<std::int64_t> places_;      // [key ranges]
  std::span<std::int64_t> first_tile_;  // [query ranges]
  std::span<QueryTile> tiles_;
  std::span<Walk> walks_;
  std::span<std::int64_t> touched_;  // [Hkv, parts, query tiles] 1: that part of dq holds something
  T *q_, *d_out_;                    // stacked; q in units of ln 2
  T* dq_;                            // [parts] stacked
  T *lse_, *delta_;                  // stacked; lse in units of ln 2
  T* own_;                           // [threads, per_thread]
};

}  // namespace

std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                     std::int64_t kv_heads, std::int64_t dim,
                                                     DType dtype, int threads) {
  const Sizes sizes(plan, heads, kv_heads, dim, threads);
  std::int64_t bytes = 0;
  for (const auto n : sizes.integers) bytes += Arena::leased_bytes(DType::kI64, {n});
  for (const auto n : sizes.floats) bytes += Arena::leased_bytes(dtype, {n});
  return bytes;
}

void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads) {
  const auto heads = q.shape()[1];
  const Sizes sizes(plan, heads, spaces.empty() ? heads : spaces[0].k.shape()[1], q.shape()[2],
                    ctx.threads);
  ScratchScope scratch(ctx.scratch);
  visit_float(q.dtype(), [&]<class T>(TypeTag<T>) {
    Backward<T> backward(scratch, ctx, plan, sizes, spaces, grads);
    backward.prepare(q, out, softmax_lse, d_out, softmax_scale);
    backward.walk_all();
    backward.finish(softmax_scale, dq);
  });
}

}  // namespace coppice::cpu
