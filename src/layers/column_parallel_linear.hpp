#pragma once
// A linear whose output features are split over the tensor-parallel ranks: every rank sees the
// whole input and makes its own columns of y. Its input's gradient is a sum over ranks. Under
// sequence parallelism the input's rows are gathered first, and its gradient's scattered after.
#include <functional>

#include "layers/linear.hpp"
#include "parallel/parallel_context.hpp"
#include "parallel/regions.hpp"

namespace coppice {

/// Shapes    x, dx [T, in], or this rank's rows of it under sequence parallelism
///           y, dy [T, out of this rank]
/// Parallel  each logical linear is cut into equal pieces of whole features (LinearPart::pieces)
/// Errors    ContractError where pieces are not equal, or do not fit the number of ranks
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(const ParallelContext& parallel, const ParameterStorage& storage,
                       const LinearConfig& config);

  /// y = x W^T + b
  void forward(ExecContext& ctx, ConstTensorView x, TensorView y) const;
  /// The same in two products: first this rank's features from `split` on, then those before; with
  /// `between` where the first are there.
  void forward_last_first(ExecContext& ctx, ConstTensorView x, TensorView y, std::int64_t split,
                          const std::function<void()>& between) const;
  /// dx is left out for an input that does not learn; it may be x itself.
  void backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                std::optional<TensorView> dx);
  /// What forward or backward leases from ctx.scratch for T rows.
  std::int64_t scratch_bytes(std::int64_t tokens) const;

  void collect(std::vector<Parameter*>& parameters) { parameters_.collect(parameters); }
  LinearParameters& parameters() { return parameters_; }
  const LinearParameters& parameters() const { return parameters_; }

 private:
  Crossing start_sum(ExecContext& ctx, TensorView partial, TensorView dx);

  ParallelContext parallel_;
  LinearParameters parameters_;
};

}  // namespace coppice
