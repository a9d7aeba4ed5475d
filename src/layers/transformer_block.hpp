#pragma once
// One layer of the model: norm, attention, residual; norm, feed-forward network, residual. It also
// decides what is kept between forward and backward and makes the rest again.
#include "layers/mlp.hpp"
#include "layers/self_attention.hpp"

namespace coppice {

/// What a block keeps from forward to backward besides its input. Results are bit-equal under each.
enum class Recompute {
  kNone,       ///< everything
  kSelective,  ///< attention's output and LSE; norms and matrices run again
  kBlock,      ///< nothing; the whole block runs again
};

struct TransformerBlockConfig {
  std::string name;  ///< Hugging Face name, "model.layers.0"
  std::int64_t hidden_size, intermediate_size;
  std::int64_t num_attention_heads, num_key_value_heads, head_dim;
  bool qkv_bias = false;
  bool qk_norm = false;
  double rms_norm_eps = 1e-6;
};

class TransformerBlock {
 public:
  /// Kept from forward to backward; what `recompute` does not keep has no memory here. T is this
  /// rank's share of the rows under sequence parallelism.
  struct Activations {
    Recompute recompute = Recompute::kNone;
    Tensor attention_normed;               // [T, N]  input of attention
    Tensor attention_rstd;                 // [T]
    SelfAttention::Activations attention;  //
    Tensor middle;                         // [T, N]  residual stream after attention
    Tensor mlp_normed;                     // [T, N]  input of the feed-forward network
    Tensor mlp_rstd;                       // [T]
    Mlp::Activations mlp;                  //
  };

  TransformerBlock(const ParallelContext& parallel, const ParameterStorage& storage,
                   const TransformerBlockConfig& config);

  /// For a batch of `tokens` rows, `gathered_rows` of which all context-parallel ranks share.
  Activations lease_activations(Arena& arena, std::int64_t tokens, Recompute recompute,
                                std::int64_t gathered_rows = 0) const;
  std::int64_t activation_bytes(std::int64_t tokens, Recompute recompute,
                                std::int64_t gathered_rows = 0) const;
  /// The most that a pass leases from ctx.scratch.
  std::int64_t forward_scratch_bytes(const AttentionPlan& plan, Recompute recompute, int threads,
                                     const SharedRows& shared = {}) const;
  std::int64_t backward_scratch_bytes(const AttentionPlan& plan, Recompute recompute, int threads,
                                      const SharedRows& shared = {}) const;

  /// x, y [T, N]; x must be unchanged until backward.
  void forward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows, Activations& acts,
               TensorView y) const;

  /// Overwrites dx, which may be dy itself. The activations' memory is used up.
  /// `later` adds gradients of this layer's keys and values that come from another pass.
  void backward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows, Activations&& acts,
                ConstTensorView dy, TensorView dx,
                std::optional<KeyValueGrad> later = std::nullopt);

  /// Input norm, attention, second norm, feed-forward network: the order of the computation.
  void collect(std::vector<Parameter*>& parameters);
  SelfAttention& attention() { return attention_; }
  Mlp& mlp() { return mlp_; }

 private:
  std::int64_t complete_bytes(std::int64_t tokens, std::int64_t gathered_rows) const;
  void lease_all(Arena& arena, std::int64_t tokens, std::int64_t gathered_rows, bool with_output,
                 Activations& acts) const;
  Activations completed(Activations& kept, Arena& scratch, const PackedRows& rows) const;
  void recompute(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                 Activations& acts) const;

  std::int64_t hidden_size_;
  DType dtype_;
  ParallelContext parallel_;
  RmsNorm attention_norm_;
  SelfAttention attention_;
  RmsNorm mlp_norm_;
  Mlp mlp_;
};

}  // namespace coppice
