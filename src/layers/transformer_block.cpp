// The block, composed of its layers. Under recomputation the missing activations live in scratch
// for the length of one pass, and the same code runs on them.
#include "layers/transformer_block.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace coppice {
namespace {

/// The same memory under another name, for the length of a pass.
Tensor borrowed(Tensor& tensor) { return Tensor(tensor.view()); }

/// Under sequence parallelism each rank sees the norm's gradient of its own rows only.
ReductionGroup norm_reduction(const ParallelContext& parallel) {
  return parallel.shards_sequence() ? ReductionGroup::kTensor : ReductionGroup::kNone;
}

}  // namespace

TransformerBlock::TransformerBlock(const ParallelContext& parallel, const ParameterStorage& storage,
                                   const TransformerBlockConfig& config)
    : hidden_size_(config.hidden_size),
      dtype_(storage.dtype),
      parallel_(parallel),
      attention_norm_(parallel, storage, config.name + ".input_layernorm", config.hidden_size,
                      config.rms_norm_eps, norm_reduction(parallel)),
      attention_(parallel, storage,
                 {.name = config.name + ".self_attn",
                  .hidden_size = config.hidden_size,
                  .num_attention_heads = config.num_attention_heads,
                  .num_key_value_heads = config.num_key_value_heads,
                  .head_dim = config.head_dim,
                  .qkv_bias = config.qkv_bias,
                  .qk_norm = config.qk_norm,
                  .rms_norm_eps = config.rms_norm_eps}),
      mlp_norm_(parallel, storage, config.name + ".post_attention_layernorm", config.hidden_size,
                config.rms_norm_eps, norm_reduction(parallel)),
      mlp_(parallel, storage, config.name + ".mlp", config.hidden_size, config.intermediate_size) {}

void TransformerBlock::lease_all(Arena& arena, std::int64_t tokens, std::int64_t gathered_rows,
                                 bool with_output, Activations& acts) const {
  const auto rows = parallel_.sequence_rows(tokens);
  acts.attention_normed = arena.tensor(dtype_, {rows, hidden_size_});
  acts.attention_rstd = arena.tensor(accumulation_of(dtype_), {rows});
  attention_.lease_projections(arena, tokens, acts.attention);
  if (with_output) attention_.lease_output(arena, tokens, acts.attention, gathered_rows);
  acts.middle = arena.tensor(dtype_, {rows, hidden_size_});
  acts.mlp_normed = arena.tensor(dtype_, {rows, hidden_size_});
  acts.mlp_rstd = arena.tensor(accumulation_of(dtype_), {rows});
  acts.mlp = mlp_.lease_activations(arena, tokens);
}

std::int64_t TransformerBlock::complete_bytes(std::int64_t tokens,
                                              std::int64_t gathered_rows) const {
  const auto rows = parallel_.sequence_rows(tokens);
  return 3 * Arena::leased_bytes(dtype_, {rows, hidden_size_}) +
         2 * Arena::leased_bytes(accumulation_of(dtype_), {rows}) +
         attention_.projection_bytes(tokens) + attention_.output_bytes(tokens, gathered_rows) +
         mlp_.activation_bytes(tokens);
}

TransformerBlock::Activations TransformerBlock::lease_activations(
    Arena& arena, std::int64_t tokens, Recompute recompute, std::int64_t gathered_rows) const {
  Activations acts;
  acts.recompute = recompute;
  switch (recompute) {
    case Recompute::kNone:
      lease_all(arena, tokens, gathered_rows, true, acts);
      break;
    case Recompute::kSelective:
      attention_.lease_output(arena, tokens, acts.attention, gathered_rows);
      break;
    case Recompute::kBlock:
      break;
  }
  return acts;
}

std::int64_t TransformerBlock::activation_bytes(std::int64_t tokens, Recompute recompute,
                                                std::int64_t gathered_rows) const {
  switch (recompute) {
    case Recompute::kNone:
      return complete_bytes(tokens, gathered_rows);
    case Recompute::kSelective:
      return attention_.output_bytes(tokens, gathered_rows);
    case Recompute::kBlock:
      break;
  }
  return 0;
}

std::int64_t TransformerBlock::forward_scratch_bytes(const AttentionPlan& plan, Recompute recompute,
                                                     int threads, const SharedRows& shared) const {
  const auto tokens = plan.query_rows();
  return complete_bytes(tokens, shared.total()) -
         activation_bytes(tokens, recompute, shared.total()) +
         std::max(attention_.forward_scratch_bytes(plan, threads, shared),
                  mlp_.scratch_bytes(tokens));
}

std::int64_t TransformerBlock::backward_scratch_bytes(const AttentionPlan& plan,
                                                      Recompute recompute, int threads,
                                                      const SharedRows& shared) const {
  const auto tokens = plan.query_rows();
  auto inner = std::max(
      {attention_.backward_scratch_bytes(plan, threads, shared), mlp_.scratch_bytes(tokens),
       rms_norm_scratch_bytes(dtype_, parallel_.sequence_rows(tokens), hidden_size_)});
  if (recompute == Recompute::kBlock) {
    inner = std::max(inner, attention_.forward_scratch_bytes(plan, threads, shared));
  }
  return complete_bytes(tokens, shared.total()) -
         activation_bytes(tokens, recompute, shared.total()) + inner;
}

TransformerBlock::Activations TransformerBlock::completed(Activations& kept, Arena& scratch,
                                                          const PackedRows& rows) const {
  Activations acts;
  acts.recompute = kept.recompute;
  if (kept.recompute == Recompute::kNone) {
    acts.attention_normed = borrowed(kept.attention_normed);
    acts.attention_rstd = borrowed(kept.attention_rstd);
    acts.attention = {.qkv = borrowed(kept.attention.qkv),
                      .qk = borrowed(kept.attention.qk),
                      .q_rstd = borrowed(kept.attention.q_rstd),
                      .k_rstd = borrowed(kept.attention.k_rstd),
                      .out = borrowed(kept.attention.out),
                      .softmax_lse = borrowed(kept.attention.softmax_lse),
                      .gathered = borrowed(kept.attention.gathered)};
    acts.middle = borrowed(kept.middle);
    acts.mlp_normed = borrowed(kept.mlp_normed);
    acts.mlp_rstd = borrowed(kept.mlp_rstd);
    acts.mlp = {.gate_up = borrowed(kept.mlp.gate_up), .hidden = borrowed(kept.mlp.hidden)};
    return acts;
  }
  lease_all(scratch, rows.plan.query_rows(), rows.shared.total(),
            kept.recompute == Recompute::kBlock, acts);
  if (kept.recompute == Recompute::kSelective) {
    acts.attention.out = borrowed(kept.attention.out);
    acts.attention.softmax_lse = borrowed(kept.attention.softmax_lse);
    acts.attention.gathered = borrowed(kept.attention.gathered);
  }
  return acts;
}

void TransformerBlock::forward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                               Activations& kept, TensorView y) const {
  ScratchScope scratch(ctx.scratch);
  Activations acts = completed(kept, scratch.arena(), rows);
  attention_norm_.forward(ctx, x, acts.attention_normed, acts.attention_rstd);
  attention_.forward(ctx, acts.attention_normed, rows, acts.attention, acts.middle);
  mlp_norm_.forward_sum(ctx, x, acts.middle, acts.middle, acts.mlp_normed, acts.mlp_rstd);
  mlp_.forward(ctx, acts.mlp_normed, acts.mlp, y);
  add_rows(ctx, y, acts.middle, y);
}

void TransformerBlock::recompute(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                                 Activations& acts) const {
  if (acts.recompute == Recompute::kNone) return;
  attention_norm_.forward(ctx, x, acts.attention_normed, acts.attention_rstd);
  attention_.project(ctx, acts.attention_normed, rows, acts.attention,
                     acts.recompute == Recompute::kBlock ? GatherShared::kYes : GatherShared::kNo);
  if (acts.recompute == Recompute::kBlock) attention_.attend(ctx, rows, acts.attention);
  attention_.output(ctx, acts.attention, acts.middle);
  mlp_norm_.forward_sum(ctx, x, acts.middle, acts.middle, acts.mlp_normed, acts.mlp_rstd);
  mlp_.recompute(ctx, acts.mlp_normed, acts.mlp);
}

void TransformerBlock::backward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                                Activations&& kept, ConstTensorView dy, TensorView dx,
                                std::optional<KeyValueGrad> later) {
  ScratchScope scratch(ctx.scratch);
  Activations acts = completed(kept, scratch.arena(), rows);
  recompute(ctx, x, rows, acts);
  // The gradient of a normed input takes that input's place; dx carries the residual stream.
  const TensorView d_mlp_normed = acts.mlp_normed, d_attention_normed = acts.attention_normed;
  mlp_.backward(ctx, acts.mlp_normed, std::move(acts.mlp), dy, d_mlp_normed);
  mlp_norm_.backward(ctx, acts.middle, acts.mlp_rstd, d_mlp_normed, dy, dx);
  attention_.backward(ctx, acts.attention_normed, rows, acts.attention, dx, d_attention_normed,
                      later);
  attention_norm_.backward(ctx, x, acts.attention_rstd, d_attention_normed, dx, dx);
}

void TransformerBlock::collect(std::vector<Parameter*>& parameters) {
  attention_norm_.collect(parameters);
  attention_.collect(parameters);
  mlp_norm_.collect(parameters);
  mlp_.collect(parameters);
}

}  // namespace coppice
