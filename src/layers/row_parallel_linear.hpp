#pragma once
// A linear whose input features are split over the tensor-parallel ranks: every rank makes a part
// of the sum for the whole output, and the parts are added over ranks. The bias is added once,
// after that sum.
#include "layers/linear.hpp"
#include "parallel/parallel_context.hpp"

namespace coppice {

/// Parallel  one tensor-parallel rank in this version: it holds all input features
class RowParallelLinear {
 public:
  RowParallelLinear(const ParallelContext& parallel, const ParameterStorage& storage,
                    const LinearConfig& config);

  /// y [T, out] = x [T, in] W^T + b
  void forward(ExecContext& ctx, ConstTensorView x, TensorView y) const;
  /// dx is left out for an input that does not learn.
  void backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                std::optional<TensorView> dx);

  void collect(std::vector<Parameter*>& parameters) { parameters_.collect(parameters); }
  LinearParameters& parameters() { return parameters_; }
  const LinearParameters& parameters() const { return parameters_; }

 private:
  LinearParameters parameters_;
};

}  // namespace coppice
