#pragma once
// The borders between sharded and whole, as conjugate pairs: the backward of each is the adjoint of
// its forward, and is the other's forward. Layers cross borders here and nowhere else.
//
//   pair                      | forward                   | backward
//   CopyToTensorParallel      | identity                  | all-reduce
//   ReduceFromTensorParallel  | all-reduce                | identity
//   GatherFromSequence        | all-gather rows           | reduce-scatter rows
//   ReduceScatterToSequence   | reduce-scatter rows       | all-gather rows
//   GatherSharedRows          | all-gather K, V of shared | reduce-scatter dK, dV
#include "core/exec_context.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// A whole tensor enters linears that are split by columns. In place: forward does nothing,
/// backward sums what the ranks' columns sent back.
struct CopyToTensorParallel {
  static void backward(ExecContext& ctx, Communicator& tensor, TensorView dx);
};

/// Partial sums of linears that are split by rows become the whole. In place; backward does
/// nothing.
struct ReduceFromTensorParallel {
  static void forward(ExecContext& ctx, Communicator& tensor, TensorView partial);
};

/// Rows sharded over the tensor ranks become whole before a column-parallel linear.
///
/// Shapes    shard [T_r, n]   whole [T, n]   rows: T_r of every rank (equal where left out)
struct GatherFromSequence {
  static void forward(ExecContext& ctx, Communicator& tensor, ConstTensorView shard,
                      TensorView whole, std::span<const std::int64_t> rows = {});
  static void backward(ExecContext& ctx, Communicator& tensor, ConstTensorView d_whole,
                       TensorView d_shard, std::span<const std::int64_t> rows = {});
};

/// Partial sums of a row-parallel linear become the ranks' own rows of the sum.
struct ReduceScatterToSequence {
  static void forward(ExecContext& ctx, Communicator& tensor, ConstTensorView partial,
                      TensorView shard);
  static void backward(ExecContext& ctx, Communicator& tensor, ConstTensorView d_shard,
                       TensorView d_partial);
};

/// Keys and values of the rows that other context ranks see (attention/row_partition.hpp), once per
/// layer. `rows`: shared rows of every rank.
///
/// Shapes    shard [S_r, 2 Hkv D] (K beside V)   whole [S, 2 Hkv D]
/// Dtypes    backward sums in the gradients' type: f32, or f64 in an F64 run
struct GatherSharedRows {
  static void forward(ExecContext& ctx, Communicator& context, ConstTensorView shard,
                      TensorView whole, std::span<const std::int64_t> rows);
  static void backward(ExecContext& ctx, Communicator& context, ConstTensorView d_whole,
                       TensorView d_shard, std::span<const std::int64_t> rows);
};

}  // namespace coppice
