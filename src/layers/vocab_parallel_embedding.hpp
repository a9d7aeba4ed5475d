#pragma once
// Token ids to rows of the embedding matrix, and back. Each tensor-parallel rank holds a run of the
// vocabulary and contributes zeros for all other tokens; the sum over ranks is the embedding.
#include <span>

#include "core/exec_context.hpp"
#include "core/tensor.hpp"
#include "layers/vocab_shard.hpp"
#include "parallel/parallel_context.hpp"
#include "parallel/parameter.hpp"

namespace coppice {

/// y[t] = weight[token_ids[t] - shard.begin], or 0 for tokens of other ranks.
///
/// Shapes    weight [V of this rank, N]   token_ids [T]   y [T, N]
/// Dtypes    all f32 or all f64; on CUDA bf16
/// Errors    ContractError if shapes or dtypes disagree, or an id is outside the vocabulary
void embedding_forward(ExecContext& ctx, ConstTensorView weight, const VocabShard& shard,
                       std::span<const std::int32_t> token_ids, TensorView y);

/// dweight[v - shard.begin] += sum of dy[t] over the rows with token v, in row order.
///
/// Dtypes    dweight like dy; f32 for bf16
/// Repeats   bitwise, for any thread count, however often a token comes
void embedding_backward(ExecContext& ctx, const VocabShard& shard,
                        std::span<const std::int32_t> token_ids, ConstTensorView dy,
                        TensorView dweight);

/// Shapes    y, dy [T, N], or this rank's rows of it under sequence parallelism
class VocabParallelEmbedding {
 public:
  /// `name` is the Hugging Face name without ".weight", "model.embed_tokens".
  VocabParallelEmbedding(const ParallelContext& parallel, const ParameterStorage& storage,
                         const std::string& name, std::int64_t vocab_size,
                         std::int64_t hidden_size);

  void forward(ExecContext& ctx, std::span<const std::int32_t> token_ids, TensorView y) const;
  void backward(ExecContext& ctx, std::span<const std::int32_t> token_ids, ConstTensorView dy);
  /// What forward or backward leases from ctx.scratch for T rows.
  std::int64_t scratch_bytes(std::int64_t tokens) const;

  void collect(std::vector<Parameter*>& parameters) { parameters.push_back(&weight_); }
  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }

 private:
  ParallelContext parallel_;
  VocabShard shard_;
  Parameter weight_;  // [V of this rank, N]
};

namespace cpu {
void embedding_forward(ExecContext& ctx, ConstTensorView weight, const VocabShard& shard,
                       std::span<const std::int32_t> token_ids, TensorView y);
void embedding_backward(ExecContext& ctx, const VocabShard& shard,
                        std::span<const std::int32_t> token_ids, ConstTensorView dy,
                        TensorView dweight);
}  // namespace cpu
namespace cuda {
void embedding_forward(ExecContext& ctx, ConstTensorView weight, const VocabShard& shard,
                       std::span<const std::int32_t> token_ids, TensorView y);
void embedding_backward(ExecContext& ctx, const VocabShard& shard,
                        std::span<const std::int32_t> token_ids, ConstTensorView dy,
                        TensorView dweight);
}  // namespace cuda

}  // namespace coppice
