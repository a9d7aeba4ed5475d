// Checks and dispatch of the embedding, and the layer that holds its weight.
#include "layers/vocab_parallel_embedding.hpp"

#include "core/arena.hpp"
#include "core/build_config.hpp"
#include "parallel/regions.hpp"

namespace coppice {
namespace {

void check_tokens(const char* op, ConstTensorView weight, const VocabShard& shard,
                  std::span<const std::int32_t> token_ids, ConstTensorView y, DType weight_dtype) {
  COPPICE_CHECK(weight.shape().rank() == 2 && weight.dtype() == weight_dtype &&
                    weight.shape()[0] == shard.padded_rows &&
                    y.shape() == Shape({std::ssize(token_ids), weight.shape()[1]}),
                "{}: {} tokens, weight {}, rows {}", op, token_ids.size(), weight.shape(),
                y.shape());
  for (const auto token : token_ids) {
    COPPICE_CHECK(token >= 0 && token < shard.vocab_size, "{}: token {} of a vocabulary of {}", op,
                  token, shard.vocab_size);
  }
}

/// For sums over ranks of which one alone holds a row and the others hold zeros. Types that ranks
/// do not sum are taken as whole numbers, by their bits, which adds them up just as exactly.
TensorView addable(TensorView rows) {
  if (rows.dtype() != DType::kBF16) return rows;
  constexpr std::int64_t kInWord = size_of(DType::kI32) / size_of(DType::kBF16);
  const auto width = rows.shape()[1];
  COPPICE_CHECK(width % kInWord == 0, "hidden_size = {}: bf16 rows are summed in pairs", width);
  return {rows.bytes(), DType::kI32, {rows.shape()[0], width / kInWord}, rows.device()};
}

}  // namespace

void embedding_forward(ExecContext& ctx, ConstTensorView weight, const VocabShard& shard,
                       std::span<const std::int32_t> token_ids, TensorView y) {
  check_tokens("embedding_forward", weight, shard, token_ids, y, y.dtype());
  const TraceScope scope(ctx.trace, "embedding_forward", {.rows = std::ssize(token_ids)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::embedding_forward(ctx, weight, shard, token_ids, y);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::embedding_forward(ctx, weight, shard, token_ids, y);
      }
      break;
  }
  throw_no_backend("embedding_forward", ctx.device());
}

void embedding_backward(ExecContext& ctx, const VocabShard& shard,
                        std::span<const std::int32_t> token_ids, ConstTensorView dy,
                        TensorView dweight) {
  check_tokens("embedding_backward", dweight, shard, token_ids, dy, accumulation_of(dy.dtype()));
  const TraceScope scope(ctx.trace, "embedding_backward", {.rows = std::ssize(token_ids)});
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::embedding_backward(ctx, shard, token_ids, dy, dweight);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::embedding_backward(ctx, shard, token_ids, dy, dweight);
      }
      break;
  }
  throw_no_backend("embedding_backward", ctx.device());
}

VocabParallelEmbedding::VocabParallelEmbedding(const ParallelContext& parallel,
                                               const ParameterStorage& storage,
                                               const std::string& name, std::int64_t vocab_size,
                                               std::int64_t hidden_size)
    : parallel_(parallel),
      shard_(vocab_shard(parallel, vocab_size)),
      weight_(make_vocab_weight(storage, name + ".weight", shard_, hidden_size)) {}

void VocabParallelEmbedding::forward(ExecContext& ctx, std::span<const std::int32_t> token_ids,
                                     TensorView y) const {
  if (!parallel_.shards_sequence()) {
    embedding_forward(ctx, weight_.value, shard_, token_ids, y);
    return ReduceFromTensorParallel::forward(ctx, parallel_.tensor, addable(y), addable(y));
  }
  ScratchScope scratch(ctx.scratch);
  const TensorView partial = scratch.lease(y.dtype(), {std::ssize(token_ids), y.shape()[1]});
  embedding_forward(ctx, weight_.value, shard_, token_ids, partial);
  ReduceScatterToSequence::forward(ctx, parallel_.tensor, addable(partial), addable(y));
}

void VocabParallelEmbedding::backward(ExecContext& ctx, std::span<const std::int32_t> token_ids,
                                      ConstTensorView dy) {
  if (!weight_.trainable) return;
  if (!parallel_.shards_sequence()) {
    return embedding_backward(ctx, shard_, token_ids, dy, weight_.grad);
  }
  ScratchScope scratch(ctx.scratch);
  const TensorView whole = scratch.lease(dy.dtype(), {std::ssize(token_ids), dy.shape()[1]});
  ReduceScatterToSequence::backward(ctx, parallel_.tensor, dy, whole);
  embedding_backward(ctx, shard_, token_ids, whole, weight_.grad);
}

std::int64_t VocabParallelEmbedding::scratch_bytes(std::int64_t tokens) const {
  if (!parallel_.shards_sequence()) return 0;
  return Arena::leased_bytes(weight_.value.dtype(), {tokens, weight_.value.shape()[1]});
}

}  // namespace coppice
