// Backward, key-stationary: one owner per key tile and key-value head walks the rows that see it in
// a fixed order and sums dk and dv; nothing is added atomically. The same walk gives dq its part
// from this key tile, so scores are recomputed once. Key tiles are dealt out to a few *parts* by
// their place on the path from the root; each part has a dq of its own, and these are summed in
// order at the end. The deal depends on a row's ancestors only: not on siblings, groups or threads.
#include <algorithm>
#include <array>
#include <limits>

#include "attention/cpu/prefix_attention_tiles.hpp"
#include "attention/prefix_attention.hpp"
#include "core/cpu/tile_gemm.hpp"
#include "core/parallel_for.hpp"

namespace coppice::cpu {
namespace {

constexpr std::int64_t kRowBlock = 64;  // rows prepared or finished as one piece of work

EvenTiles key_tiles(const KeyRange& range, const TileSizes& sizes) {
  return {range.length, TileSizes::kBackwardKeys, sizes.query_rows};
}

/// The part that the key tile at `place` along its path belongs to: 0 1 2 2 1 0 0 1 2 ... Under a
/// causal mask later tiles are seen by fewer rows; going back and forth evens that out.
std::int64_t part_of(std::int64_t place, std::int64_t parts) {
  const auto p = place % (2 * parts);
  return p < parts ? p : 2 * parts - 1 - p;
}

/// How many key tiles lie before each key range on the path of the rows that see it.
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

/// Elements of scratch.
struct Layout {
  Layout(const AttentionPlan& plan, const TileSizes& tile_sizes, std::int64_t kv_heads,
         std::int64_t dim)
      : sizes(tile_sizes),
        stacked(plan.query_rows() * sizes.heads),
        head(stacked * dim),
        all(head * kv_heads),
        stride(round_up(std::max(TileSizes::kBackwardKeys, sizes.query_rows), kTilePadding)),
        rows(round_up(sizes.stacked_rows(), kTilePadding)),
        per_thread(2 * rows * stride + 2 * stride * round_up(dim, kTilePadding)) {}

  TileSizes sizes;
  std::int64_t stacked;  // rows of one key-value head
  std::int64_t head;     // elements of one key-value head's rows
  std::int64_t all;      // of all heads' rows
  std::int64_t stride, rows;
  std::int64_t per_thread;
};

/// What all owners read, and the parts of dq. Stacked: [Hkv, T * heads, D] or [Hkv, T * heads].
template <class T>
struct Shared {
  T *q, *d_out;  // q is scaled
  T *lse, *delta;
  T* dq;  // [parts] of these
};

/// One thread's tiles.
template <class T>
struct Own {
  Own(T* scratch, const Layout& layout, std::int64_t dim)
      : scores(scratch),
        d_scores(scores + layout.rows * layout.stride),
        dk(d_scores + layout.rows * layout.stride),
        dv(dk + layout.stride * round_up(dim, kTilePadding)) {}
  T *scores, *d_scores;  // [rows, stride]
  T *dk, *dv;            // [keys, dim]
};

/// A key tile of one head with its sums, which rows add to in the order in which they are shown.
template <class T>
struct KeyTile {
  const Layout& layout;
  const Shared<T>& shared;
  Own<T> own;
  std::int64_t kv_head, part, dim;
  const T *k, *v;
  std::int64_t k_stride, v_stride;
  bool learns;

  /// `count` rows from `row` on see `full` keys, then each its part of a square of `square` keys.
  void see(std::int64_t row, std::int64_t count, std::int64_t full, std::int64_t square) const {
    const auto heads = layout.sizes.heads, rows = count * heads;
    const TileShape shape{rows, heads, full, square, layout.stride};
    const auto first = kv_head * layout.stacked + row * heads;
    const T* q = shared.q + first * dim;
    const T* d_out = shared.d_out + first * dim;
    T* dq = shared.dq + part * layout.all + first * dim;
    tile_gemm(Transpose::kNo, Transpose::kYes, rows, shape.columns(), dim, T{1}, q, dim, k,
              k_stride, T{0}, own.scores, shape.stride);
    tile_gemm(Transpose::kNo, Transpose::kYes, rows, shape.columns(), dim, T{1}, d_out, dim, v,
              v_stride, T{0}, own.d_scores, shape.stride);
    gradient_tile(shape, shared.lse + first, shared.delta + first, own.scores, own.d_scores);
    tile_gemm(Transpose::kNo, Transpose::kNo, rows, dim, full, T{1}, own.d_scores, shape.stride, k,
              k_stride, T{1}, dq, dim);
    multiply_square(shape, own.d_scores + full, k + full * k_stride, k_stride, dim, dq);
    if (!learns) return;
    tile_gemm(Transpose::kYes, Transpose::kNo, full, dim, rows, T{1}, own.scores, shape.stride,
              d_out, dim, T{1}, own.dv, dim);
    tile_gemm(Transpose::kYes, Transpose::kNo, full, dim, rows, T{1}, own.d_scores, shape.stride, q,
              dim, T{1}, own.dk, dim);
    multiply_square_transposed(shape, own.scores + full, d_out, dim, own.dv + full * dim);
    multiply_square_transposed(shape, own.d_scores + full, q, dim, own.dk + full * dim);
  }
};

/// Shows the key tile [begin, +length) of `range` to every row that sees it, in packed order.
template <class T>
void walk_rows(const AttentionPlan& plan, const KeyRange& range, std::int64_t begin,
               std::int64_t length, const KeyTile<T>& tile) {
  const auto queries = plan.query_ranges();
  const auto step = tile.layout.sizes.query_rows;
  for (const QueryRun& run : range.runs) {
    auto query =
        std::lower_bound(queries.begin(), queries.end(), run.begin,
                         [](const QueryRange& q, std::int64_t row) { return q.begin < row; });
    if (run.mask == Mask::kCausal) {
      for (auto at = begin; at < query->length; at += step) {
        const auto rows = std::min(step, query->length - at);
        tile.see(query->begin + at, rows, std::min(length, at - begin),
                 at < begin + length ? rows : 0);
      }
      continue;
    }
    for (; query != queries.end() && query->begin < run.begin + run.length; ++query) {
      for (std::int64_t at = 0; at < query->length; at += step) {
        tile.see(query->begin + at, std::min(step, query->length - at), length, 0);
      }
    }
  }
}

template <class T>
void write_rows(const T* from, std::int64_t rows, std::int64_t dim, double beta, T* to,
                std::int64_t stride) {
  for (std::int64_t j = 0; j < rows; ++j, from += dim, to += stride) {
    for (std::int64_t d = 0; d < dim; ++d) to[d] = beta == 0.0 ? from[d] : to[d] + from[d];
  }
}

/// All key tiles of one head and part, in the plan's order.
template <class T>
void run_part(const AttentionPlan& plan, const Layout& layout, const Shared<T>& shared,
              std::span<const std::int64_t> places, std::int64_t kv_head, std::int64_t part,
              T* scratch, std::span<const KeySpace> spaces, std::span<const KeySpaceGrad> grads,
              std::int64_t dim) {
  for (std::size_t r = 0; r < places.size(); ++r) {
    const KeyRange& range = plan.key_ranges()[r];
    const auto space = static_cast<std::size_t>(range.space);
    const auto& [k, v] = spaces[space];
    const auto& [dk, dv, beta] = grads[space];
    const EvenTiles tiles = key_tiles(range, layout.sizes);
    for (std::int64_t t = 0; t < tiles.count(); ++t) {
      if (part_of(places[r] + t, layout.sizes.dq_parts) != part) continue;
      const auto begin = t * tiles.size, length = tiles.length(begin), row = range.begin + begin;
      const KeyTile<T> tile{layout,
                            shared,
                            Own<T>(scratch, layout, dim),
                            kv_head,
                            part,
                            dim,
                            k.data<T>() + row * k.strides()[0] + kv_head * k.strides()[1],
                            v.data<T>() + row * v.strides()[0] + kv_head * v.strides()[1],
                            k.strides()[0],
                            v.strides()[0],
                            dk.bytes() != nullptr};
      std::fill_n(tile.own.dk, length * dim, T{0});
      std::fill_n(tile.own.dv, length * dim, T{0});
      walk_rows(plan, range, begin, length, tile);
      if (!tile.learns) continue;
      write_rows(tile.own.dk, length, dim, beta,
                 dk.data<T>() + row * dk.strides()[0] + kv_head * dk.strides()[1], dk.strides()[0]);
      write_rows(tile.own.dv, length, dim, beta,
                 dv.data<T>() + row * dv.strides()[0] + kv_head * dv.strides()[1], dv.strides()[0]);
    }
  }
}

struct Item {
  std::int64_t kv_head, part, cost;
};
constexpr std::int64_t kItemFields = sizeof(Item) / sizeof(std::int64_t);

/// Longest first.
void list_items(const AttentionPlan& plan, const TileSizes& sizes,
                std::span<const std::int64_t> places, std::span<Item> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    items[i] = {index / sizes.dq_parts, index % sizes.dq_parts, 0};
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
      for (Item& item : items) {
        if (item.part == part) item.cost += rows * tiles.length(t * tiles.size);
      }
    }
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.part < b.part;
  });
}

}  // namespace

std::int64_t prefix_attention_backward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                     std::int64_t kv_heads, std::int64_t dim,
                                                     DType dtype, int threads) {
  const TileSizes sizes(heads, kv_heads);
  const Layout layout(plan, sizes, kv_heads, dim);
  const auto bytes = [&](std::int64_t elements) { return Arena::leased_bytes(dtype, {elements}); };
  return Arena::leased_bytes(DType::kI64, {std::ssize(plan.key_ranges())}) +
         Arena::leased_bytes(DType::kI64, {kv_heads * sizes.dq_parts, kItemFields}) +
         2 * bytes(layout.all) + 2 * bytes(layout.stacked * kv_heads) +
         bytes(layout.all * sizes.dq_parts) + bytes(layout.per_thread * threads);
}

void prefix_attention_backward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                               std::span<const KeySpace> spaces, ConstTensorView out,
                               ConstTensorView softmax_lse, ConstTensorView d_out,
                               double softmax_scale, TensorView dq,
                               std::span<const KeySpaceGrad> grads) {
  const auto heads = q.shape()[1], dim = q.shape()[2];
  const auto kv_heads = spaces.empty() ? heads : spaces[0].k.shape()[1];
  const TileSizes sizes(heads, kv_heads);
  const Layout layout(plan, sizes, kv_heads, dim);

  ScratchScope scratch(ctx.scratch);
  const auto key_ranges = std::ssize(plan.key_ranges());
  const std::span places(scratch.lease(DType::kI64, {key_ranges}).data<std::int64_t>(),
                         static_cast<std::size_t>(key_ranges));
  list_places(plan, sizes, places);
  const auto item_count = kv_heads * sizes.dq_parts;
  const std::span items(
      reinterpret_cast<Item*>(scratch.lease(DType::kI64, {item_count, kItemFields}).bytes()),
      static_cast<std::size_t>(item_count));
  list_items(plan, sizes, places, items);

  visit_float(q.dtype(), [&]<class T>(TypeTag<T>) {
    const auto lease = [&](std::int64_t n) { return scratch.lease(q.dtype(), {n}).data<T>(); };
    const auto scale = static_cast<T>(softmax_scale);
    Shared<T> shared;
    shared.q = lease(layout.all);
    shared.d_out = lease(layout.all);
    shared.lse = lease(layout.stacked * kv_heads);
    shared.delta = lease(layout.stacked * kv_heads);
    shared.dq = lease(layout.all * sizes.dq_parts);
    T* per_thread = lease(layout.per_thread * ctx.threads);
    const auto at = [](const auto& view, std::int64_t row, std::int64_t head) {
      return view.template data<T>() + row * view.strides()[0] + head * view.strides()[1];
    };
    const auto blocks = divide_up(plan.query_rows(), kRowBlock);

    parallel_for(ctx, blocks * kv_heads, [&](std::int64_t i) {
      const auto kv = i / blocks, row = i % blocks * kRowBlock, head = kv * sizes.heads;
      const auto rows = std::min(kRowBlock, plan.query_rows() - row);
      const auto stacked = rows * sizes.heads;
      const auto first = kv * layout.stacked + row * sizes.heads;
      stack_rows(at(q, row, head), q.strides()[0], q.strides()[1], stacked, sizes.heads, dim, scale,
                 shared.q + first * dim);
      stack_rows(at(d_out, row, head), d_out.strides()[0], d_out.strides()[1], stacked, sizes.heads,
                 dim, T{1}, shared.d_out + first * dim);
      row_dots(at(out, row, head), out.strides()[0], out.strides()[1], shared.d_out + first * dim,
               stacked, sizes.heads, dim, shared.delta + first);
      for (std::int64_t r = 0; r < stacked; ++r) {
        shared.lse[first + r] =
            softmax_lse.data<T>()[(head + r % sizes.heads) * softmax_lse.strides()[0] + row +
                                  r / sizes.heads];
      }
      for (std::int64_t part = 0; part < sizes.dq_parts; ++part) {
        std::fill_n(shared.dq + part * layout.all + first * dim, stacked * dim, T{0});
      }
    });

    parallel_for(ctx, item_count, [&](std::int64_t i) {
      const Item& item = items[static_cast<std::size_t>(i)];
      run_part<T>(plan, layout, shared, places, item.kv_head, item.part,
                  per_thread + omp_get_thread_num() * layout.per_thread, spaces, grads, dim);
    });

    parallel_for(ctx, blocks * kv_heads, [&](std::int64_t i) {
      const auto kv = i / blocks, first_row = i % blocks * kRowBlock;
      const auto end = std::min(first_row + kRowBlock, plan.query_rows());
      for (auto row = first_row; row < end; ++row) {
        for (std::int64_t h = 0; h < sizes.heads; ++h) {
          const auto stacked = kv * layout.stacked + row * sizes.heads + h;
          sum_parts(shared.dq + stacked * dim, layout.all, sizes.dq_parts, dim, scale,
                    at(dq, row, kv * sizes.heads + h));
        }
      }
    });
  });
}

}  // namespace coppice::cpu
