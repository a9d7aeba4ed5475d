// The columns of one rank, and the collectives around its arithmetic.
#include "layers/row_parallel_linear.hpp"

#include "core/arena.hpp"
#include "layers/rows.hpp"
#include "parallel/regions.hpp"

namespace coppice {
namespace {

LinearParameters make_columns(const ParallelContext& parallel, const ParameterStorage& storage,
                              const LinearConfig& config) {
  const std::int64_t ranks = parallel.tensor.size(), rank = parallel.tensor.rank();
  COPPICE_CHECK(config.in_features % ranks == 0, "{}: {} input features for {} ranks", config.name,
                config.in_features, ranks);
  const auto columns = config.in_features / ranks;
  std::vector<PartShard> weights, biases;
  for (const auto& part : config.parts) {
    weights.push_back({part.name + ".weight", Shard::along({part.out_features, config.in_features},
                                                           1, rank * columns, columns)});
    // Each rank sees the gradient of all rows, or under sequence parallelism of its own only.
    biases.push_back(
        {.name = part.name + ".bias",
         .shard = Shard::whole({part.out_features}),
         .reduction = parallel.shards_sequence() ? ReductionGroup::kTensor : ReductionGroup::kNone,
         .is_primary = parallel.is_first_tensor_rank()});
  }
  return make_linear_parameters(storage, config, weights, biases);
}

}  // namespace

RowParallelLinear::RowParallelLinear(const ParallelContext& parallel,
                                     const ParameterStorage& storage, const LinearConfig& config)
    : parallel_(parallel), parameters_(make_columns(parallel, storage, config)) {}

void RowParallelLinear::forward(ExecContext& ctx, ConstTensorView x, TensorView y) const {
  const DType sums = partial_dtype(parallel_.tensor, y.dtype());
  const bool in_place = !parallel_.shards_sequence() && sums == y.dtype();
  ScratchScope scratch(ctx.scratch);
  const TensorView partial =
      in_place ? y : scratch.lease(sums, {x.shape()[0], parameters_.weight.rows()});
  matrix_forward(ctx, parameters_.weight, x, partial);
  if (parallel_.shards_sequence()) {
    ReduceScatterToSequence::forward(ctx, parallel_.tensor, partial, y);
  } else {
    ReduceFromTensorParallel::forward(ctx, parallel_.tensor, partial, y);
  }
  if (parameters_.bias) add_bias(ctx, parameters_.bias->value, y);
}

void RowParallelLinear::backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                                 std::optional<TensorView> dx) {
  if (!parallel_.shards_sequence()) return linear_backward(ctx, parameters_, x, dy, dx);
  if (parameters_.bias && parameters_.bias->trainable) {
    bias_backward(ctx, dy, parameters_.bias->grad);
  }
  ScratchScope scratch(ctx.scratch);
  const TensorView whole = scratch.lease(dy.dtype(), {x.shape()[0], dy.shape()[1]});
  ReduceScatterToSequence::backward(ctx, parallel_.tensor, dy, whole);
  matrix_backward(ctx, parameters_.weight, x, whole, dx);
}

std::int64_t RowParallelLinear::scratch_bytes(std::int64_t tokens) const {
  const Tensor& weight = parameters_.weight.value;
  const DType sums = partial_dtype(parallel_.tensor, weight.dtype());
  if (!parallel_.shards_sequence() && sums == weight.dtype()) return 0;
  return Arena::leased_bytes(sums, {tokens, weight.shape()[0]});
}

}  // namespace coppice
