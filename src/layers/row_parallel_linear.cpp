// The linear of one tensor-parallel rank; collectives join forward and backward here.
#include "layers/row_parallel_linear.hpp"

namespace coppice {

RowParallelLinear::RowParallelLinear(const ParallelContext& parallel,
                                     const ParameterStorage& storage, const LinearConfig& config)
    : parameters_(storage, config) {
  COPPICE_CHECK(parallel.tensor.size() == 1, "{}: not yet split over {} ranks", config.name,
                parallel.tensor.size());
}

void RowParallelLinear::forward(ExecContext& ctx, ConstTensorView x, TensorView y) const {
  linear_forward(ctx, parameters_, x, y);
}

void RowParallelLinear::backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                                 std::optional<TensorView> dx) {
  linear_backward(ctx, parameters_, x, dy, dx);
}

}  // namespace coppice
