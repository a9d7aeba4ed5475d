#pragma once
// Self-attention of a block: one fused matrix makes q, k and v, heads are normed (Qwen3) and turned
// by their positions, prefix attention joins rows as the plan says, a last matrix leads back. Which
// rows see which is the plan's; the residual addition and the norm before belong to the block. Keys
// and values that other context-parallel ranks see are gathered here, once per layer.
#include <span>

#include "attention/prefix_attention.hpp"
#include "attention/shared_rows.hpp"
#include "core/arena.hpp"
#include "layers/column_parallel_linear.hpp"
#include "layers/rms_norm.hpp"
#include "layers/rope.hpp"
#include "layers/row_parallel_linear.hpp"

namespace coppice {

/// What all layers of one pass share: who sees whom, where each row stands in its sequence, and
/// which rows context-parallel ranks exchange.
struct PackedRows {
  const AttentionPlan& plan;  // key space 0: own rows; 1, where rows are shared: gathered rows
  std::span<const std::int32_t> positions;  // [T]
  const RopeTable& rope;
  const SharedRows& shared;
};

/// Gradients of a layer's keys (after turning) and values that come from elsewhere: rows of a later
/// pass that attended to them.
struct KeyValueGrad {
  ConstTensorView dk, dv;  // [T, Hkv, D]
};

struct SelfAttentionConfig {
  std::string name;  ///< Hugging Face name, "model.layers.0.self_attn"
  std::int64_t hidden_size, num_attention_heads, num_key_value_heads, head_dim;
  bool qkv_bias = false;
  bool qk_norm = false;  ///< RMS norm of each q and k head before turning
  double rms_norm_eps = 1e-6;
};

/// Whether a projection brings shared rows to this rank: not where they were kept.
enum class GatherShared { kNo, kYes };

class SelfAttention {
 public:
  /// Kept from forward to backward. T tokens, S gathered rows, Hq and Hkv heads of this rank, of
  /// width D.
  struct Activations {
    Tensor qkv;          // [T, (Hq + 2 Hkv) D]  q and k turned, unless there are q/k norms
    Tensor qk;           // [T, (Hq + Hkv) D]    with q/k norms only: normed and turned
    Tensor q_rstd;       // [T, Hq]              with q/k norms only
    Tensor k_rstd;       // [T, Hkv]             with q/k norms only
    Tensor out;          // [T, Hq D]            before the last matrix
    Tensor softmax_lse;  // [Hq, T]
    Tensor gathered;     // [S, 2 Hkv D]         with shared rows only: K beside V, K turned
  };

  SelfAttention(const ParallelContext& parallel, const ParameterStorage& storage,
                const SelfAttentionConfig& config);

  /// Two parts, because recomputation keeps the second and makes the first again.
  void lease_projections(Arena& arena, std::int64_t tokens, Activations& acts) const;
  void lease_output(Arena& arena, std::int64_t tokens, Activations& acts,
                    std::int64_t gathered_rows = 0) const;
  std::int64_t projection_bytes(std::int64_t tokens) const;
  std::int64_t output_bytes(std::int64_t tokens, std::int64_t gathered_rows = 0) const;
  /// The most that forward or backward leases from ctx.scratch.
  std::int64_t forward_scratch_bytes(const AttentionPlan& plan, int threads,
                                     const SharedRows& shared = {}) const;
  std::int64_t backward_scratch_bytes(const AttentionPlan& plan, int threads,
                                      const SharedRows& shared = {}) const;

  /// x, y [T, hidden_size], or this rank's rows of it under sequence parallelism. Forward is its
  /// three steps, one after the other. Where rows are shared, the projection makes keys and values
  /// first, and the ranks gather them while it makes the queries.
  void forward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows, Activations& acts,
               TensorView y) const;
  void project(ExecContext& ctx, ConstTensorView x, const PackedRows& rows, Activations& acts,
               GatherShared gather) const;
  void attend(ExecContext& ctx, const PackedRows& rows, Activations& acts) const;
  void output(ExecContext& ctx, const Activations& acts, TensorView y) const;

  /// Overwrites dx, which may be x itself.
  void backward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                const Activations& acts, ConstTensorView dy, TensorView dx,
                std::optional<KeyValueGrad> later = std::nullopt);

  /// Keys and values as attention sees them, for passes that attend to these rows later.
  KeySpace key_space(const Activations& acts) const;
  /// Those of the rows that the context-parallel ranks share.
  KeySpace gathered_space(const Activations& acts) const;

  void collect(std::vector<Parameter*>& parameters);
  ColumnParallelLinear& qkv() { return qkv_; }
  RowParallelLinear& output_projection() { return output_; }

 private:
  ConstTensorView queries(const Activations& acts) const;
  ConstTensorView keys(const Activations& acts) const;    // [T, Hkv D]
  ConstTensorView values(const Activations& acts) const;  // [T, Hkv D]
  void turn(ExecContext& ctx, const PackedRows& rows, Activations& acts, std::int64_t first_head,
            std::int64_t heads) const;
  Crossing start_gather(ExecContext& ctx, const PackedRows& rows, Activations& acts,
                        TensorView own) const;
  void return_shared(ExecContext& ctx, const PackedRows& rows, ConstTensorView d_gathered,
                     TensorView d_key_value) const;
  std::int64_t q_width() const { return num_attention_heads_ * config_.head_dim; }
  std::int64_t kv_width() const { return num_key_value_heads_ * config_.head_dim; }

  SelfAttentionConfig config_;
  ParallelContext parallel_;
  std::int64_t num_attention_heads_, num_key_value_heads_;  // of this rank
  DType dtype_;
  double softmax_scale_;
  ColumnParallelLinear qkv_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  RowParallelLinear output_;
};

}  // namespace coppice
