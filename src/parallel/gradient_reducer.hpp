#pragma once
// The one place that makes gradients whole after the last micro-batch, and values whole after the
// update. It reads what each parameter says of itself (ReductionGroup), so that no layer can forget
// a sum. Clipping, the update and whether there is one are optim's and the trainer's.
#include <span>

#include "core/exec_context.hpp"
#include "parallel/process_grid.hpp"
#include "parallel/row_share.hpp"

namespace coppice {

/// What is sharded over the ranks that hold the same tensor shard (data x context).
enum class Zero {
  kNone,       ///< nothing: each of them updates every row
  kOptimizer,  ///< moments, and with them the update: by whole rows (ZeRO-1)
};

/// Parallel  collective over the grid; one pass over the parameters in their order, the same on all
///           ranks. Frozen parameters take no part
/// Memory    none: shares of a gradient are summed where they lie
/// Effects   over the replicas the parameters come in their order, but those with sums over tensor
///           ranks behind the others
/// Repeats   bitwise on the same grid
/// Source    Rajbhandari et al., ZeRO, arXiv:1910.02054, stage 1
/// Oracle    tests/ranks/gradient_reducer_test.cpp
class GradientReducer {
 public:
  GradientReducer(ProcessGrid& grid, Zero zero) : grid_(grid), zero_(zero) {}

  /// The rows whose gradient this rank completes, whose moments it holds and which it updates.
  RowShare updated() const;
  /// The rows this rank speaks for among its replicas: in the norm and in a checkpoint.
  RowShare spoken_for() const { return {grid_.replicas().rank(), grid_.replicas().size()}; }

  /// Sums what ranks hold of a gradient: first each part over its reduction group, then everything
  /// over the replicas. Afterwards the updated() rows of `grad` are whole; others hold no meaning.
  void complete(ExecContext& ctx, std::span<Parameter* const> parameters);
  /// Begins with those of `parameters` that only the replicas share, under compute; the gradients
  /// are whole on this rank, and belong to the sums until complete(). Where given, they are the
  /// first that complete() will be told, call by call. A rank may leave it to complete().
  void start(ExecContext& ctx, std::span<Parameter* const> parameters);

  /// After the update: every replica's rows of every value to all of them.
  void gather_values(ExecContext& ctx, std::span<Parameter* const> parameters);
  /// Begins, under compute, with these, which are updated; gather_values() is told them first.
  void start_gather(ExecContext& ctx, std::span<Parameter* const> parameters);

 private:
  Communicator* tensor_ranks_of(const ParameterPart& part);
  bool has_tensor_sums(const Parameter& parameter);
  Pending start_sum(ExecContext& ctx, Parameter& parameter);
  bool shards() const { return zero_ == Zero::kOptimizer && grid_.replicas().size() > 1; }

  ProcessGrid& grid_;
  Zero zero_;
  std::vector<Pending> sums_, gathers_;              // under way
  std::vector<const Parameter*> summed_, gathered_;  // of these, in this step
};

}  // namespace coppice
