// Checks and dispatch of the embedding, and the layer that holds its weight.
#include "layers/vocab_parallel_embedding.hpp"

namespace coppice {
namespace {

void check_tokens(const char* op, ConstTensorView weight, std::span<const std::int32_t> token_ids,
                  ConstTensorView y) {
  COPPICE_CHECK(weight.shape().rank() == 2 && weight.dtype() == y.dtype() &&
                    y.shape() == Shape({std::ssize(token_ids), weight.shape()[1]}),
                "{}: {} tokens, weight {}, rows {}", op, token_ids.size(), weight.shape(),
                y.shape());
  for (const auto token : token_ids) {
    COPPICE_CHECK(token >= 0 && token < weight.shape()[0], "{}: token {} of a vocabulary of {}", op,
                  token, weight.shape()[0]);
  }
}

}  // namespace

void embedding_forward(ExecContext& ctx, ConstTensorView weight,
                       std::span<const std::int32_t> token_ids, TensorView y) {
  check_tokens("embedding_forward", weight, token_ids, y);
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::embedding_forward(ctx, weight, token_ids, y);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::embedding_forward(ctx, weight, token_ids, y);
      break;
  }
  throw_no_backend("embedding_forward", ctx.device());
}

void embedding_backward(ExecContext& ctx, std::span<const std::int32_t> token_ids,
                        ConstTensorView dy, TensorView dweight) {
  check_tokens("embedding_backward", dweight, token_ids, dy);
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::embedding_backward(ctx, token_ids, dy, dweight);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) return cuda::embedding_backward(ctx, token_ids, dy, dweight);
      break;
  }
  throw_no_backend("embedding_backward", ctx.device());
}

VocabParallelEmbedding::VocabParallelEmbedding(const ParallelContext& parallel,
                                               const ParameterStorage& storage,
                                               const std::string& name, std::int64_t vocab_size,
                                               std::int64_t hidden_size)
    : weight_(make_parameter(storage, name + ".weight",
                             {{name + ".weight", Shard::whole({vocab_size, hidden_size})}},
                             WeightDecay::kYes)) {
  COPPICE_CHECK(parallel.tensor.size() == 1, "{}: the vocabulary is not yet split over {} ranks",
                name, parallel.tensor.size());
}

void VocabParallelEmbedding::forward(ExecContext& ctx, std::span<const std::int32_t> token_ids,
                                     TensorView y) const {
  embedding_forward(ctx, weight_.value, token_ids, y);
}

void VocabParallelEmbedding::backward(ExecContext& ctx, std::span<const std::int32_t> token_ids,
                                      ConstTensorView dy) {
  if (weight_.trainable) embedding_backward(ctx, token_ids, dy, weight_.grad);
}

}  // namespace coppice
