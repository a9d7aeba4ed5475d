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
  if (!parallel_.shards_sequence()) {
    linear_backward(ctx, parameters_, x, dy, dx);
    if (dx) CopyToTensorParallel::backward(ctx, parallel_.tensor, *dx);
    return;
  }
  ScratchScope scratch(ctx.scratch);
  const TensorView whole = scratch.lease(x.dtype(), {dy.shape()[0], x.shape()[1]});
  GatherFromSequence::forward(ctx, parallel_.tensor, x, whole);
  std::optional<TensorView> d_whole;
  if (dx) d_whole = whole;  // x is read before its gradient takes its place
  linear_backward(ctx, parameters_, whole, dy, d_whole);
  if (dx) GatherFromSequence::backward(ctx, parallel_.tensor, whole, *dx);
}

std::int64_t ColumnParallelLinear::scratch_bytes(std::int64_t tokens) const {
  if (!parallel_.shards_sequence()) return 0;
  const Tensor& weight = parameters_.weight.value;
  return Arena::leased_bytes(weight.dtype(), {tokens, weight.shape()[1]});
}

}  // namespace coppice
