// Forward: one work item per key-value head and tile of query rows. It walks the keys that its rows
// see with an online softmax and writes its own rows only, so items need no order among them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/cpu/prefix_attention_tiles.hpp"
#include "attention/prefix_attention.hpp"
#include "core/parallel_for.hpp"

namespace coppice::cpu {
namespace {

struct Item {
  std::int64_t range, tile_begin, kv_head, cost;
};
constexpr std::int64_t kItemFields = sizeof(Item) / sizeof(std::int64_t);

std::int64_t item_count(const AttentionPlan& plan, const TileSizes& sizes, std::int64_t kv_heads) {
  std::int64_t count = 0;
  for (const QueryRange& range : plan.query_ranges()) {
    count += divide_up(range.length, sizes.query_rows) * kv_heads;
  }
  return count;
}

/// Longest first; among equals those that share keys stay together.
void list_items(const AttentionPlan& plan, const TileSizes& sizes, std::int64_t kv_heads,
                std::span<Item> items) {
  const auto ranges = plan.query_ranges();
  auto item = items.begin();
  for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      std::int64_t seen = 0;
      for (const auto key : ranges[r].full) {
        seen += plan.key_ranges()[static_cast<std::size_t>(key)].length;
      }
      for (std::int64_t begin = 0; begin < ranges[r].length; begin += sizes.query_rows) {
        const auto rows = std::min(sizes.query_rows, ranges[r].length - begin);
        const auto own = ranges[r].square == QueryRange::kNoSquare ? 0 : begin + rows;
        *item++ = {static_cast<std::int64_t>(r), begin, kv, rows * (seen + own)};
      }
    }
  }
  // In place and without a buffer; equal costs are told apart, so the order is one.
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    if (a.kv_head != b.kv_head) return a.kv_head < b.kv_head;
    return a.range != b.range ? a.range < b.range : a.tile_begin < b.tile_begin;
  });
}

/// Elements of one thread's scratch, in the order of Tile's members.
struct Layout {
  Layout(const TileSizes& sizes, std::int64_t dim)
      : rows(round_up(sizes.stacked_rows(), kTilePadding)),
        stride(round_up(TileSizes::kForwardKeys + sizes.query_rows, kTilePadding)),
        total(2 * rows * round_up(dim, kTilePadding) + rows * stride + 3 * rows) {}
  std::int64_t rows, stride, total;
};

/// One tile of query rows on its way through the keys.
template <class T>
class Tile {
 public:
  Tile(T* scratch, const Layout& layout, std::int64_t rows, std::int64_t heads, std::int64_t dim)
      : rows_(rows),
        heads_(heads),
        dim_(dim),
        stride_(layout.stride),
        q_(scratch),
        o_(q_ + layout.rows * round_up(dim, kTilePadding)),
        scores_(o_ + layout.rows * round_up(dim, kTilePadding)),
        max_(scores_ + layout.rows * layout.stride),
        sum_(max_ + layout.rows),
        correction_(sum_ + layout.rows) {
    std::fill_n(max_, layout.rows, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_, layout.rows, T{0});
    std::fill_n(o_, rows * dim, T{0});
  }

  T* q() { return q_; }

  /// All rows see `full` keys from `first` on, then each its part of a square of `square` keys. v
  /// is that of the first.
  void see(const T* key_panels, std::int64_t first, const T* v, std::int64_t v_stride,
           std::int64_t full, std::int64_t square) {
    const TileShape shape{rows_, heads_, full, square, stride_};
    score_tile(shape, q_, dim_, key_panels, first, scores_);
    softmax_tile(shape, scores_, max_, sum_, correction_);
    if (!empty_) scale_rows(rows_, dim_, correction_, o_);
    add_seen(shape, scores_, v, v_stride, dim_, o_);
    empty_ = false;
  }

  /// Scaled outputs and natural LSE of all rows; `out` and `lse` are those of the first row's first
  /// head.
  void finish(T* out, std::int64_t out_stride, std::int64_t head_stride, T* lse,
              std::int64_t lse_stride) {
    for (std::int64_t row = 0; row < rows_; ++row) {
      T& to = lse[row % heads_ * lse_stride + row / heads_];
      to = empty_ ? -std::numeric_limits<T>::infinity()
                  : static_cast<T>(std::numbers::ln2) * (max_[row] + std::log2(sum_[row]));
      correction_[row] = empty_ ? T{0} : 1 / sum_[row];
    }
    unstack_rows(o_, correction_, rows_, heads_, dim_, out, out_stride, head_stride);
  }

 private:
  std::int64_t rows_, heads_, dim_, stride_;  // rows are stacked
  bool empty_ = true;
  T *q_, *o_;  // [rows, dim]
  T* scores_;  // [rows, stride]
  T *max_, *sum_, *correction_;
};

/// Where the transposed keys of a range begin, of one key-value head's: ranges one after the other.
/// Filling `begins` is optional.
std::int64_t list_panels(const AttentionPlan& plan, std::int64_t dim,
                         std::span<std::int64_t> begins = {}) {
  std::int64_t next = 0;
  for (std::size_t r = 0; r < plan.key_ranges().size(); ++r) {
    if (!begins.empty()) begins[r] = next;
    next += key_panel_elements(plan.key_ranges()[r].length, dim);
  }
  return next;
}

template <class T>
const T* row_of(ConstTensorView space, std::int64_t row, std::int64_t head) {
  return space.data<T>() + row * space.strides()[0] + head * space.strides()[1];
}

/// All keys transposed once, for all query tiles that see them.
template <class T>
class KeyPanels {
 public:
  KeyPanels(ScratchScope& scratch, const AttentionPlan& plan, std::int64_t kv_heads,
            std::int64_t dim)
      : plan_(plan), dim_(dim) {
    const TensorView begins =
        scratch.lease(DType::kI64, {static_cast<std::int64_t>(plan.key_ranges().size())});
    begins_ = {begins.data<std::int64_t>(), plan.key_ranges().size()};
    of_head_ = list_panels(plan, dim, begins_);
    panels_ = scratch.lease(kDTypeOf<T>, {kv_heads, of_head_}).template data<T>();
  }

  void fill(ExecContext& ctx, std::int64_t kv_heads, std::span<const KeySpace> spaces) const {
    const auto ranges = std::ssize(plan_.key_ranges());
    parallel_for(ctx, ranges * kv_heads, [&](std::int64_t i) {
      const auto range = static_cast<std::size_t>(i % ranges);
      const KeyRange& keys = plan_.key_ranges()[range];
      const ConstTensorView k = spaces[static_cast<std::size_t>(keys.space)].k;
      transpose_keys(row_of<T>(k, keys.begin, i / ranges), k.strides()[0], keys.length, dim_,
                     panels_ + i / ranges * of_head_ + begins_[range]);
    });
  }

  const T* of(std::int32_t range, std::int64_t kv_head) const {
    return panels_ + kv_head * of_head_ + begins_[static_cast<std::size_t>(range)];
  }

 private:
  const AttentionPlan& plan_;
  std::int64_t dim_, of_head_;
  std::span<std::int64_t> begins_;  // [key ranges]
  T* panels_;                       // [Hkv, of_head]
};

template <class T>
void run_item(const AttentionPlan& plan, const TileSizes& sizes, const Item& item, T* scratch,
              ConstTensorView q, const KeyPanels<T>& panels, std::span<const KeySpace> spaces,
              double softmax_scale, TensorView out, TensorView softmax_lse) {
  const QueryRange& range = plan.query_ranges()[static_cast<std::size_t>(item.range)];
  const auto dim = q.shape()[2], heads = sizes.heads;
  const auto rows = std::min(sizes.query_rows, range.length - item.tile_begin);
  const auto first_row = range.begin + item.tile_begin, first_head = item.kv_head * heads;

  Tile<T> tile(scratch, Layout(sizes, dim), rows * heads, heads, dim);
  stack_rows(q.data<T>() + first_row * q.strides()[0] + first_head * q.strides()[1], q.strides()[0],
             q.strides()[1], rows * heads, heads, dim,
             static_cast<T>(softmax_scale * std::numbers::log2e), tile.q());

  const auto see = [&](std::int32_t key_index, std::int64_t full_rows, std::int64_t square) {
    const KeyRange& key = plan.key_ranges()[static_cast<std::size_t>(key_index)];
    const ConstTensorView v = spaces[static_cast<std::size_t>(key.space)].v;
    const T* v_rows = row_of<T>(v, key.begin, item.kv_head);
    const EvenTiles tiles(std::max<std::int64_t>(full_rows, 1), TileSizes::kForwardKeys,
                          kTilePadding);
    std::int64_t begin = 0;
    do {  // the square, if there is one, goes with the last full tile
      const auto full = std::min(tiles.size, full_rows - begin);
      const bool last = begin + full == full_rows;
      tile.see(panels.of(key_index, item.kv_head), begin, v_rows + begin * v.strides()[0],
               v.strides()[0], full, last ? square : 0);
      begin += full;
    } while (begin < full_rows);
  };
  for (const auto key : range.full) {
    see(key, plan.key_ranges()[static_cast<std::size_t>(key)].length, 0);
  }
  if (range.square != QueryRange::kNoSquare) see(range.square, item.tile_begin, rows);

  tile.finish(out.data<T>() + first_row * out.strides()[0] + first_head * out.strides()[1],
              out.strides()[0], out.strides()[1],
              softmax_lse.data<T>() + first_head * softmax_lse.strides()[0] + first_row,
              softmax_lse.strides()[0]);
}

}  // namespace

std::int64_t prefix_attention_forward_scratch_bytes(const AttentionPlan& plan, std::int64_t heads,
                                                    std::int64_t kv_heads, std::int64_t dim,
                                                    DType dtype, int threads) {
  const TileSizes sizes(heads, kv_heads);
  return Arena::leased_bytes(DType::kI64, {item_count(plan, sizes, kv_heads), kItemFields}) +
         Arena::leased_bytes(DType::kI64, {std::ssize(plan.key_ranges())}) +
         Arena::leased_bytes(dtype, {kv_heads, list_panels(plan, dim)}) +
         Arena::leased_bytes(dtype, {threads, Layout(sizes, dim).total});
}

void prefix_attention_forward(ExecContext& ctx, const AttentionPlan& plan, ConstTensorView q,
                              std::span<const KeySpace> spaces, double softmax_scale,
                              TensorView out, TensorView softmax_lse) {
  const auto heads = q.shape()[1];
  const auto kv_heads = spaces.empty() ? heads : spaces[0].k.shape()[1];
  const TileSizes sizes(heads, kv_heads);
  const Layout layout(sizes, q.shape()[2]);

  ScratchScope scratch(ctx.scratch);
  const auto count = item_count(plan, sizes, kv_heads);
  TensorView item_bytes = scratch.lease(DType::kI64, {count, kItemFields});
  const std::span<Item> items(reinterpret_cast<Item*>(item_bytes.bytes()),
                              static_cast<std::size_t>(count));
  list_items(plan, sizes, kv_heads, items);
  TensorView per_thread = scratch.lease(q.dtype(), {ctx.threads, layout.total});

  visit_float(q.dtype(), [&]<class T>(TypeTag<T>) {
    const KeyPanels<T> panels(scratch, plan, kv_heads, q.shape()[2]);
    panels.fill(ctx, kv_heads, spaces);
    parallel_for(ctx, count, [&](std::int64_t i) {
      T* own = per_thread.data<T>() + thread_index() * layout.total;
      run_item<T>(plan, sizes, items[static_cast<std::size_t>(i)], own, q, panels, spaces,
                  softmax_scale, out, softmax_lse);
    });
  });
}

}  // namespace coppice::cpu
