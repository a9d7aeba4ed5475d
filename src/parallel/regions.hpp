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
//
// Rows are gathered in the type they are stored in. Sums over ranks are made in the type that sums
// within a rank are made in: where activations are bf16 a rank's part is f32, as it leaves the
// product of matrices, and the sum is rounded once, however many ranks there are.
#include <optional>

#include "core/exec_context.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// The type of a rank's part of a sum over the ranks of `comm` that ends as `dtype`. One rank's
/// part is the sum.
inline DType partial_dtype(const Communicator& comm, DType dtype) {
  return comm.size() > 1 ? accumulation_of(dtype) : dtype;
}

/// A border that is being crossed under compute: its tensors belong to it until finish(), which
/// makes the result.
class Crossing {
 public:
  Crossing() = default;
  explicit Crossing(Pending pending) : pending_(std::move(pending)) {}
  /// `sum`, once there, becomes `result`, rounded.
  Crossing(Pending pending, ConstTensorView sum, TensorView result)
      : pending_(std::move(pending)), sum_(sum), result_(result) {}

  void finish(ExecContext& ctx);

 private:
  Pending pending_;
  std::optional<ConstTensorView> sum_;
  TensorView result_;
};

/// A whole tensor enters linears that are split by columns: forward does nothing, backward sums
/// what the ranks' columns sent back.
///
/// Dtypes    partial: partial_dtype() of dx, contiguous; it may be dx itself, else its values are
///           lost
struct CopyToTensorParallel {
  static void backward(ExecContext& ctx, Communicator& tensor, TensorView partial, TensorView dx);
  static Crossing start_backward(ExecContext& ctx, Communicator& tensor, TensorView partial,
                                 TensorView dx);
};

/// Partial sums of linears that are split by rows become the whole; backward does nothing.
///
/// Dtypes    partial: as for CopyToTensorParallel
struct ReduceFromTensorParallel {
  static void forward(ExecContext& ctx, Communicator& tensor, TensorView partial, TensorView y);
};

/// Rows sharded over the tensor ranks become whole before a column-parallel linear.
///
/// Shapes    shard [T_r, n]   whole [T, n]   rows: T_r of every rank (equal where left out)
/// Dtypes    d_whole: partial_dtype() of d_shard; overwritten where that is another type
struct GatherFromSequence {
  static void forward(ExecContext& ctx, Communicator& tensor, ConstTensorView shard,
                      TensorView whole, std::span<const std::int64_t> rows = {});
  static void backward(ExecContext& ctx, Communicator& tensor, TensorView d_whole,
                       TensorView d_shard, std::span<const std::int64_t> rows = {});
  static Crossing start_forward(ExecContext& ctx, Communicator& tensor, ConstTensorView shard,
                                TensorView whole);
  static Crossing start_backward(ExecContext& ctx, Communicator& tensor, TensorView d_whole,
                                 TensorView d_shard);
};

/// Partial sums of a row-parallel linear become the ranks' own rows of the sum.
///
/// Dtypes    partial: partial_dtype() of shard; overwritten where that is another type
struct ReduceScatterToSequence {
  static void forward(ExecContext& ctx, Communicator& tensor, TensorView partial, TensorView shard);
  static void backward(ExecContext& ctx, Communicator& tensor, ConstTensorView d_shard,
                       TensorView d_partial);
};

/// Keys and values of the rows that other context ranks see (attention/row_partition.hpp), once per
/// layer. `rows`: shared rows of every rank.
///
/// Shapes    shard [S_r, 2 Hkv D] (K beside V)   whole [S, 2 Hkv D]
/// Dtypes    backward takes, sums and gives the gradients' type: f32, or f64 in an F64 run
struct GatherSharedRows {
  static void forward(ExecContext& ctx, Communicator& context, ConstTensorView shard,
                      TensorView whole, std::span<const std::int64_t> rows);
  static Crossing start_forward(ExecContext& ctx, Communicator& context, ConstTensorView shard,
                                TensorView whole, std::span<const std::int64_t> rows);
  static void backward(ExecContext& ctx, Communicator& context, ConstTensorView d_whole,
                       TensorView d_shard, std::span<const std::int64_t> rows);
};

}  // namespace coppice
