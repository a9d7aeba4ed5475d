#pragma once
// A run's state cut over ranks in several ways, for checkpoint tests. Every rank can make the
// whole, so what a file must hold is known without asking another rank.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

struct NamedShape {
  std::string dataset;
  Shape shape;
};

/// Shapes that do not divide: one row, one column, one element, no element, primes.
inline std::vector<NamedShape> state_shapes() {
  std::vector<NamedShape> shapes;
  for (const std::string group : {"/parameters/", "/optimizer/exp_avg/"}) {
    shapes.push_back({group + "embed.weight", {7, 5}});
    shapes.push_back({group + "o_proj.weight", {5, 11}});
    shapes.push_back({group + "norm.weight", {1}});
    shapes.push_back({group + "one_row.weight", {1, 13}});
    shapes.push_back({group + "one_column.weight", {17, 1}});
    shapes.push_back({group + "none.weight", {0, 3}});
    shapes.push_back({group + "bias", {23}});
  }
  shapes.push_back({"/parameters/large.weight", {211, 509}});
  return shapes;
}

/// The rectangles of one tensor that a rank holds: `place` counts tensors.
using Cut =
    std::function<std::vector<Shard>(std::size_t place, const Shape& shape, int rank, int ranks)>;

inline Shard part_along(const Shape& shape, int axis, std::int64_t part, std::int64_t parts) {
  const std::int64_t extent = shape[axis];
  const std::int64_t begin = extent * part / parts, end = extent * (part + 1) / parts;
  return Shard::along(shape, axis, begin, end - begin);
}

/// Rows and columns in turn, over all ranks: as tensor parallelism does.
inline std::vector<Shard> rows_or_columns(std::size_t place, const Shape& shape, int rank,
                                          int ranks) {
  return {part_along(shape, place % 2 == 1 && shape.rank() == 2 ? 1 : 0, rank, ranks)};
}

/// Columns over pairs of ranks, rows over the pairs: tensor parallelism with a sharded optimizer.
inline std::vector<Shard> grid(std::size_t, const Shape& shape, int rank, int ranks) {
  const int tensor = ranks % 2 == 0 ? 2 : 1;
  if (shape.rank() == 1) return {part_along(shape, 0, rank, ranks)};
  const Shard rows = part_along(shape, 0, rank / tensor, ranks / tensor);
  const Shard columns = part_along(shape, 1, rank % tensor, tensor);
  return {{shape, columns.global_offset.with(0, rows.global_offset[0]),
           columns.local_shape.with(0, rows.local_shape[0])}};
}

/// Two bands of rows each, the outermost to rank 0.
inline std::vector<Shard> two_bands(std::size_t, const Shape& shape, int rank, int ranks) {
  return {part_along(shape, 0, rank, 2 * ranks),
          part_along(shape, 0, 2 * ranks - 1 - rank, 2 * ranks)};
}

/// All on the last rank; the others list nothing.
inline std::vector<Shard> all_on_last(std::size_t, const Shape& shape, int rank, int ranks) {
  if (rank != ranks - 1) return {};
  return {Shard::whole(shape)};
}

/// Whole tensors dealt to the ranks in turn.
inline std::vector<Shard> dealt(std::size_t place, const Shape& shape, int rank, int ranks) {
  if (static_cast<int>(place % static_cast<std::size_t>(ranks)) != rank) return {};
  return {Shard::whole(shape)};
}

inline Tensor cut_out(TestContext& context, ConstTensorView whole, const Shard& shard) {
  Tensor piece = context.zeros(whole.dtype(), shard.local_shape);
  const bool is_matrix = whole.shape().rank() == 2;
  const std::int64_t width = size_of(whole.dtype());
  const std::int64_t run = (is_matrix ? shard.local_shape[1] : 1) * width;
  const std::int64_t pitch = (is_matrix ? whole.shape()[1] : 1) * width;
  const std::int64_t first = (is_matrix ? shard.global_offset[1] : 0) * width;
  for (std::int64_t row = 0; run > 0 && row < shard.local_shape[0]; ++row) {
    std::memcpy(piece.view().bytes() + row * run,
                whole.bytes() + (shard.global_offset[0] + row) * pitch + first,
                static_cast<std::size_t>(run));
  }
  return piece;
}

/// What one rank holds, and the list that names it.
struct RankState {
  std::vector<Tensor> tensors;
  std::vector<StateTensor> list;

  void add(const std::string& dataset, const Shard& shard, Tensor tensor) {
    tensors.push_back(std::move(tensor));
    list.push_back({dataset, shard, tensors.back()});
  }
};

enum class Filled { kValues, kOnes };

inline RankState state_of(TestContext& context, DType dtype, const Cut& cut, int rank, int ranks,
                          Filled filled = Filled::kValues) {
  RankState state;
  const auto shapes = state_shapes();
  for (std::size_t place = 0; place < shapes.size(); ++place) {
    const auto& [dataset, shape] = shapes[place];
    const Tensor whole = context.random(dtype, shape, dataset);
    for (const Shard& shard : cut(place, shape, rank, ranks)) {
      state.add(dataset, shard,
                filled == Filled::kOnes ? context.filled(dtype, shard.local_shape, 1.0)
                                        : cut_out(context, whole, shard));
    }
  }
  return state;
}

}  // namespace coppice::test
