// The pieces of one rank, and the collectives around its arithmetic.
#include "layers/column_parallel_linear.hpp"

#include "core/arena.hpp"
#include "parallel/regions.hpp"

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

void ColumnParallelLinear::backward(ExecContext& ctx, ConstTensorView x, ConstTensorView dy,
                                    std::optional<TensorView> dx) {
  ScratchScope scratch(ctx.scratch);
  const bool sharded = parallel_.shards_sequence();
  const Shape shape{dy.shape()[0], x.shape()[1]};
  TensorView whole;
  if (sharded) {
    whole = scratch.lease(x.dtype(), shape);
    GatherFromSequence::forward(ctx, parallel_.tensor, x, whole);
  }
  std::optional<TensorView> partial;
  if (dx) {
    const DType sums = partial_dtype(parallel_.tensor, dx->dtype());
    // x is read before its gradient may take its place.
    partial = sums != dx->dtype() ? scratch.lease(sums, shape) : sharded ? whole : *dx;
  }
  linear_backward(ctx, parameters_, sharded ? whole : x, dy, partial);
  if (!dx) return;
  if (sharded) {
    GatherFromSequence::backward(ctx, parallel_.tensor, *partial, *dx);
  } else {
    CopyToTensorParallel::backward(ctx, parallel_.tensor, *partial, *dx);
  }
}

std::int64_t ColumnParallelLinear::scratch_bytes(std::int64_t tokens) const {
  const DType dtype = parameters_.weight.value.dtype();
  const DType sums = partial_dtype(parallel_.tensor, dtype);
  const Shape shape{tokens, parameters_.weight.value.shape()[1]};
  return (parallel_.shards_sequence() ? Arena::leased_bytes(dtype, shape) : 0) +
         (sums != dtype ? Arena::leased_bytes(sums, shape) : 0);
}

}  // namespace coppice
