#pragma once
// A linear whose input features are split over the tensor-parallel ranks: every rank makes a part
// of the sum for the whole output, and the parts are added over ranks. The bias is added once,
// after that sum. Under sequence parallelism each rank receives its own rows of the sum.
#include "layers/linear.hpp"
#include "parallel/parallel_context.hpp"

namespace coppice {

/// Shapes    x, dx [T, in of this rank]
///           y, dy [T, out], or this rank's rows of it under sequence parallelism
/// Parallel  the input features are cut evenly; the bias is whole on every rank
/// Errors    ContractError where they cannot be cut evenly
class RowParallelLinear {
 public:
  RowParallelLinear(const ParallelContext& parallel, const ParameterStorage& storage,
                    const LinearConfig& config);

  /// y = x W^T + b
  void forward(ExecContext& ctx, ConstTensorView x, TensorView y) const;
  /// dx is left out for an input that does not learn; it may be x itself.
  void backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                std::optional<TensorView> dx);
  /// What forward or backward leases from ctx.scratch for T rows.
  std::int64_t scratch_bytes(std::int64_t tokens) const;

  void collect(std::vector<Parameter*>& parameters) { parameters_.collect(parameters); }
  LinearParameters& parameters() { return parameters_; }
  const LinearParameters& parameters() const { return parameters_; }

 private:
  ParallelContext parallel_;
  LinearParameters parameters_;
};

}  // namespace coppice
