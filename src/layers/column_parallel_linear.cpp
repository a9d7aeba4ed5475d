// The pieces of one rank, and the collectives around its arithmetic.
#include "layers/column_parallel_linear.hpp"

#include "core/arena.hpp"

namespace coppice {
namespace {

/// The rows of a logical weight or bias that this rank holds.
PartShard piece_of(const ParallelContext& parallel, const LinearPart& part, const char* suffix,
                   Shape whole) {
  const std::int64_t ranks = parallel.tensor.size();
  const auto pieces = part.pieces == LinearPart::kOneEach ? ranks : part.pieces;
  COPPICE_CHECK(pieces > 0 && part.out_features % pieces == 0 && ranks % pieces == 0,
                "{}: {} features in {} pieces for {} ranks", part.name, part.out_features, pieces,
                ranks);
  const auto sharers = ranks / pieces, features = part.out_features / pieces;
  const auto piece = parallel.tensor.rank() / sharers;
  return {.name = part.name + suffix,
          .shard = Shard::along(whole, 0, piece * features, features),
          .reduction = sharers > 1 ? ReductionGroup::kSharedKeyValueHead : ReductionGroup::kNone,
          .is_primary = parallel.tensor.rank() % sharers == 0};
}

LinearParameters make_pieces(const ParallelContext& parallel, const ParameterStorage& storage,
                             const LinearConfig& config) {
  std::vector<PartShard> weights, biases;
  for (const auto& part : config.parts) {
    weights.push_back(piece_of(parallel, part, ".weight", {part.out_features, config.in_features}));
    biases.push_back(piece_of(parallel, part, ".bias", {part.out_features}));
  }
  return make_linear_parameters(storage, config, weights, biases);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const ParallelContext& parallel,
                                           const ParameterStorage& storage,
                                           const LinearConfig& config)
    : parallel_(parallel), parameters_(make_pieces(parallel, storage, config)) {}

void ColumnParallelLinear::forward(ExecContext& ctx, ConstTensorView x, TensorView y) const {
  if (!parallel_.shards_sequence()) return linear_forward(ctx, parameters_, x, y);
  ScratchScope scratch(ctx.scratch);
  const TensorView whole = scratch.lease(x.dtype(), {y.shape()[0], x.shape()[1]});
  GatherFromSequence::forward(ctx, parallel_.tensor, x, whole);
  linear_forward(ctx, parameters_, whole, y);
}

void ColumnParallelLinear::forward_last_first(ExecContext& ctx, ConstTensorView x, TensorView y,
                                              std::int64_t split,
                                              const std::function<void()>& between) const {
  ScratchScope scratch(ctx.scratch);
  ConstTensorView whole = x;
  if (parallel_.shards_sequence()) {
    const TensorView gathered = scratch.lease(x.dtype(), {y.shape()[0], x.shape()[1]});
    GatherFromSequence::forward(ctx, parallel_.tensor, x, gathered);
    whole = gathered;
  }
  linear_forward_features(ctx, parameters_, whole, y, {split, parameters_.weight.rows()});
  between();
  linear_forward_features(ctx, parameters_, whole, y, {0, split});
}

// The sum of dx over the ranks runs under the weight's gradient, the gathering of x under dx.
void ColumnParallelLinear::backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                                    std::optional<TensorView> dx) {
  ScratchScope scratch(ctx.scratch);
  const bool sharded = parallel_.shards_sequence();
  const Shape shape{dy.shape()[0], x.shape()[1]};
  ConstTensorView whole = x;
  Crossing gathering, summing;
  if (sharded) {
    const TensorView gathered = scratch.lease(x.dtype(), shape);
    gathering = GatherFromSequence::start_forward(ctx, parallel_.tensor, x, gathered);
    whole = gathered;
  }
  std::optional<TensorView> partial;
  if (dx) {
    const DType sums = partial_dtype(parallel_.tensor, dx->dtype());
    partial = sharded || sums != dx->dtype() ? scratch.lease(sums, shape) : *dx;
  }
  // Where its gradient takes the place of x, x must be read first.
  const bool in_place = partial && partial->bytes() == whole.bytes();
  if (partial && !in_place) {
    linear_input_gradient(ctx, parameters_, dy, *partial);
    summing = start_sum(ctx, *partial, *dx);
  }
  gathering.finish(ctx);
  linear_weight_gradients(ctx, parameters_, whole, dy);
  if (in_place) {
    linear_input_gradient(ctx, parameters_, dy, *partial);
    summing = start_sum(ctx, *partial, *dx);
  }
  summing.finish(ctx);
}

Crossing ColumnParallelLinear::start_sum(ExecContext& ctx, TensorView partial, TensorView dx) {
  return parallel_.shards_sequence()
             ? GatherFromSequence::start_backward(ctx, parallel_.tensor, partial, dx)
             : CopyToTensorParallel::start_backward(ctx, parallel_.tensor, partial, dx);
}

std::int64_t ColumnParallelLinear::scratch_bytes(std::int64_t tokens) const {
  const DType dtype = parameters_.weight.value.dtype();
  const DType sums = partial_dtype(parallel_.tensor, dtype);
  const Shape shape{tokens, parameters_.weight.value.shape()[1]};
  const bool sharded = parallel_.shards_sequence();
  return (sharded ? Arena::leased_bytes(dtype, shape) : 0) +
         (sharded || sums != dtype ? Arena::leased_bytes(sums, shape) : 0);
}

}  // namespace coppice
