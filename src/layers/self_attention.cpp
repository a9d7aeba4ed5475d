// Self-attention, composed of its ops. Heads are views of columns; nothing is transposed or copied.
#include "layers/self_attention.hpp"

#include <algorithm>
#include <cmath>

#include "layers/rows.hpp"
#include "parallel/regions.hpp"

namespace coppice {
namespace {

/// `heads` heads from column `begin` of a matrix of rows, as [T, heads, D].
template <class View>
View heads_of(View matrix, std::int64_t begin, std::int64_t heads, std::int64_t head_dim) {
  return matrix.columns(begin, heads * head_dim).reshape({matrix.shape()[0], heads, head_dim});
}

/// q is cut by heads; so are k and v, unless there are fewer key-value heads than ranks: then
/// neighbours hold the same head.
LinearConfig qkv_config(const ParallelContext& parallel, const SelfAttentionConfig& config) {
  const std::int64_t ranks = parallel.tensor.size();
  const auto heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  COPPICE_CHECK(kv_heads > 0 && heads % kv_heads == 0, "{}: {} query heads for {} key-value heads",
                config.name, heads, kv_heads);
  COPPICE_CHECK(heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0),
                "{}: {} query heads and {} key-value heads for {} tensor-parallel ranks",
                config.name, heads, kv_heads, ranks);
  const auto kv_width = kv_heads * config.head_dim, kv_pieces = std::min(ranks, kv_heads);
  return {.name = config.name + ".qkv_proj",
          .in_features = config.hidden_size,
          .parts = {{config.name + ".q_proj", heads * config.head_dim},
                    {config.name + ".k_proj", kv_width, kv_pieces},
                    {config.name + ".v_proj", kv_width, kv_pieces}},
          .bias = config.qkv_bias};
}

}  // namespace

SelfAttention::SelfAttention(const ParallelContext& parallel, const ParameterStorage& storage,
                             const SelfAttentionConfig& config)
    : config_(config),
      parallel_(parallel),
      num_attention_heads_(config.num_attention_heads / parallel.tensor.size()),
      num_key_value_heads_(
          std::max<std::int64_t>(1, config.num_key_value_heads / parallel.tensor.size())),
      dtype_(storage.dtype),
      softmax_scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      qkv_(parallel, storage, qkv_config(parallel, config)),
      output_(parallel, storage,
              {.name = config.name + ".o_proj",
               .in_features = config.num_attention_heads * config.head_dim,
               .parts = {{config.name + ".o_proj", config.hidden_size}}}) {
  if (config.qk_norm) {
    // Ranks see the gradients of their own heads.
    const auto reduction =
        parallel.tensor.size() > 1 ? ReductionGroup::kTensor : ReductionGroup::kNone;
    q_norm_.emplace(parallel, storage, config.name + ".q_norm", config.head_dim,
                    config.rms_norm_eps, reduction);
    k_norm_.emplace(parallel, storage, config.name + ".k_norm", config.head_dim,
                    config.rms_norm_eps, reduction);
  }
}

void SelfAttention::lease_projections(Arena& arena, std::int64_t tokens, Activations& acts) const {
  acts.qkv = arena.tensor(dtype_, {tokens, q_width() + 2 * kv_width()});
  if (!config_.qk_norm) return;
  acts.qk = arena.tensor(dtype_, {tokens, q_width() + kv_width()});
  acts.q_rstd = arena.tensor(accumulation_of(dtype_), {tokens, num_attention_heads_});
  acts.k_rstd = arena.tensor(accumulation_of(dtype_), {tokens, num_key_value_heads_});
}

void SelfAttention::lease_output(Arena& arena, std::int64_t tokens, Activations& acts,
                                 std::int64_t gathered_rows) const {
  acts.out = arena.tensor(dtype_, {tokens, q_width()});
  acts.softmax_lse = arena.tensor(accumulation_of(dtype_), {num_attention_heads_, tokens});
  if (gathered_rows > 0) acts.gathered = arena.tensor(dtype_, {gathered_rows, 2 * kv_width()});
}

std::int64_t SelfAttention::projection_bytes(std::int64_t tokens) const {
  auto bytes = Arena::leased_bytes(dtype_, {tokens, q_width() + 2 * kv_width()});
  if (config_.qk_norm) {
    bytes += Arena::leased_bytes(dtype_, {tokens, q_width() + kv_width()}) +
             Arena::leased_bytes(accumulation_of(dtype_), {tokens, num_attention_heads_}) +
             Arena::leased_bytes(accumulation_of(dtype_), {tokens, num_key_value_heads_});
  }
  return bytes;
}

std::int64_t SelfAttention::output_bytes(std::int64_t tokens, std::int64_t gathered_rows) const {
  auto bytes = Arena::leased_bytes(dtype_, {tokens, q_width()}) +
               Arena::leased_bytes(accumulation_of(dtype_), {num_attention_heads_, tokens});
  if (gathered_rows > 0) bytes += Arena::leased_bytes(dtype_, {gathered_rows, 2 * kv_width()});
  return bytes;
}

std::int64_t SelfAttention::forward_scratch_bytes(const AttentionPlan& plan, int threads,
                                                  const SharedRows& shared) const {
  const auto tokens = plan.query_rows();
  const auto handed_out =
      shared.any() ? Arena::leased_bytes(dtype_, {std::ssize(shared.rows), 2 * kv_width()}) : 0;
  return std::max(
      {qkv_.scratch_bytes(tokens) + handed_out, output_.scratch_bytes(tokens),
       prefix_attention_forward_scratch_bytes(plan, num_attention_heads_, num_key_value_heads_,
                                              config_.head_dim, dtype_, threads)});
}

std::int64_t SelfAttention::backward_scratch_bytes(const AttentionPlan& plan, int threads,
                                                   const SharedRows& shared) const {
  const auto tokens = plan.query_rows();
  auto inner = prefix_attention_backward_scratch_bytes(
      plan, num_attention_heads_, num_key_value_heads_, config_.head_dim, dtype_, threads);
  if (shared.any()) {
    const DType sums = accumulation_of(dtype_);
    inner = std::max(inner, Arena::leased_bytes(sums, {std::ssize(shared.rows), 2 * kv_width()})) +
            Arena::leased_bytes(sums, {shared.total(), 2 * kv_width()});
  }
  if (config_.qk_norm) {
    inner = std::max(inner, rms_norm_scratch_bytes(dtype_, tokens, config_.head_dim));
  }
  inner = std::max({inner, qkv_.scratch_bytes(tokens), output_.scratch_bytes(tokens)});
  return Arena::leased_bytes(dtype_, {tokens, q_width()}) +
         Arena::matrix_bytes(dtype_, tokens, q_width() + 2 * kv_width()) + inner;
}

ConstTensorView SelfAttention::queries(const Activations& acts) const {
  const ConstTensorView source = config_.qk_norm ? acts.qk : acts.qkv;
  return heads_of(source, 0, num_attention_heads_, config_.head_dim);
}

ConstTensorView SelfAttention::keys(const Activations& acts) const {
  const ConstTensorView source = config_.qk_norm ? acts.qk : acts.qkv;
  return source.columns(q_width(), kv_width());
}

ConstTensorView SelfAttention::values(const Activations& acts) const {
  return acts.qkv.view().columns(q_width() + kv_width(), kv_width());
}

KeySpace SelfAttention::key_space(const Activations& acts) const {
  const auto heads = num_key_value_heads_, width = config_.head_dim;
  return {.k = heads_of(keys(acts), 0, heads, width), .v = heads_of(values(acts), 0, heads, width)};
}

KeySpace SelfAttention::gathered_space(const Activations& acts) const {
  const ConstTensorView gathered = acts.gathered;
  const auto heads = num_key_value_heads_, width = config_.head_dim;
  return {.k = heads_of(gathered, 0, heads, width),
          .v = heads_of(gathered, kv_width(), heads, width)};
}

// Heads of q and k, normed where the model does, and turned.
void SelfAttention::turn(ExecContext& ctx, const PackedRows& rows, Activations& acts,
                         std::int64_t first_head, std::int64_t heads) const {
  const auto width = config_.head_dim;
  if (!config_.qk_norm) {
    return rope_forward(ctx, rows.rope, rows.positions,
                        heads_of(acts.qkv.view(), first_head * width, heads, width));
  }
  const auto q_heads = std::max<std::int64_t>(0, num_attention_heads_ - first_head);
  const auto apply = [&](const RmsNorm& norm, std::int64_t first, std::int64_t count,
                         Tensor& rstd) {
    norm.forward(ctx, heads_of(acts.qkv.view(), first * width, count, width),
                 heads_of(acts.qk.view(), first * width, count, width), rstd);
  };
  if (q_heads > 0) apply(*q_norm_, first_head, q_heads, acts.q_rstd);
  if (heads > q_heads) apply(*k_norm_, first_head + q_heads, heads - q_heads, acts.k_rstd);
  rope_forward(ctx, rows.rope, rows.positions,
               heads_of(acts.qk.view(), first_head * width, heads, width));
}

void SelfAttention::project(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                            Activations& acts, GatherShared gather) const {
  const auto q_heads = num_attention_heads_, kv_heads = num_key_value_heads_;
  constexpr const char* kModule = "qkv_proj_forward";
  if (!rows.shared.any()) {
    {
      const TraceScope scope(ctx.trace, TraceKind::kModule, kModule);
      qkv_.forward(ctx, x, acts.qkv);
    }
    return turn(ctx, rows, acts, 0, q_heads + kv_heads);
  }
  // The same two products where nothing is gathered: recomputed rows have the bits of the first.
  ScratchScope scratch(ctx.scratch);
  Crossing gathering;
  TensorView own;
  if (gather == GatherShared::kYes) {
    own = scratch.lease(dtype_, {std::ssize(rows.shared.rows), 2 * kv_width()});
  }
  {
    const TraceScope scope(ctx.trace, TraceKind::kModule, kModule);
    qkv_.forward_last_first(ctx, x, acts.qkv, q_width(), [&] {
      turn(ctx, rows, acts, q_heads, kv_heads);
      if (gather == GatherShared::kYes) gathering = start_gather(ctx, rows, acts, own);
    });
  }
  turn(ctx, rows, acts, 0, q_heads);
  gathering.finish(ctx);
}

Crossing SelfAttention::start_gather(ExecContext& ctx, const PackedRows& rows, Activations& acts,
                                     TensorView own) const {
  gather_rows(ctx, keys(acts), rows.shared.rows, own.columns(0, kv_width()));
  gather_rows(ctx, values(acts), rows.shared.rows, own.columns(kv_width(), kv_width()));
  return GatherSharedRows::start_forward(ctx, parallel_.context, own, acts.gathered,
                                         rows.shared.rank_rows);
}

// What other ranks' rows sent back to this rank's keys and values, added to what its own did.
void SelfAttention::return_shared(ExecContext& ctx, const PackedRows& rows,
                                  ConstTensorView d_gathered, TensorView d_key_value) const {
  ScratchScope scratch(ctx.scratch);
  const TensorView own =
      scratch.lease(d_gathered.dtype(), {std::ssize(rows.shared.rows), 2 * kv_width()});
  GatherSharedRows::backward(ctx, parallel_.context, d_gathered, own, rows.shared.rank_rows);
  add_to_rows(ctx, own, rows.shared.rows, d_key_value);
}

void SelfAttention::attend(ExecContext& ctx, const PackedRows& rows, Activations& acts) const {
  std::vector<KeySpace> spaces{key_space(acts)};
  if (rows.shared.any()) spaces.push_back(gathered_space(acts));
  prefix_attention_forward(ctx, rows.plan, queries(acts), spaces, softmax_scale_,
                           heads_of(acts.out.view(), 0, num_attention_heads_, config_.head_dim),
                           acts.softmax_lse);
}

void SelfAttention::output(ExecContext& ctx, const Activations& acts, TensorView y) const {
  const TraceScope scope(ctx.trace, TraceKind::kModule, "o_proj_forward");
  output_.forward(ctx, acts.out, y);
}

void SelfAttention::forward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                            Activations& acts, TensorView y) const {
  project(ctx, x, rows, acts, GatherShared::kYes);
  attend(ctx, rows, acts);
  output(ctx, acts, y);
}

void SelfAttention::backward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                             const Activations& acts, ConstTensorView dy, TensorView dx,
                             std::optional<KeyValueGrad> later) {
  const auto q_heads = num_attention_heads_, kv_heads = num_key_value_heads_;
  const auto width = config_.head_dim, tokens = acts.qkv.shape()[0];
  ScratchScope scratch(ctx.scratch);
  TensorView d_out = scratch.like(acts.out);
  TensorView d_qkv = scratch.matrix(dtype_, tokens, q_width() + 2 * kv_width());
  {
    const TraceScope scope(ctx.trace, TraceKind::kModule, "o_proj_backward");
    output_.backward(ctx, acts.out, dy, d_out);
  }

  const TensorView dq = heads_of(d_qkv, 0, q_heads, width);
  const TensorView d_key_value = d_qkv.columns(q_width(), 2 * kv_width());
  const TensorView dk = heads_of(d_key_value, 0, kv_heads, width);
  const TensorView dv = heads_of(d_key_value, kv_width(), kv_heads, width);
  {
    ScratchScope attention_scratch(ctx.scratch);
    std::vector<KeySpace> spaces{key_space(acts)};
    std::vector<KeySpaceGrad> grads{{.dk = dk, .dv = dv}};
    TensorView d_gathered;
    if (rows.shared.any()) {
      // In the type of sums: ranks add to it what their rows send back.
      d_gathered = attention_scratch.lease(accumulation_of(dtype_), acts.gathered.shape());
      spaces.push_back(gathered_space(acts));
      grads.push_back({.dk = heads_of(d_gathered, 0, kv_heads, width),
                       .dv = heads_of(d_gathered, kv_width(), kv_heads, width)});
    }
    prefix_attention_backward(ctx, rows.plan, queries(acts), spaces,
                              heads_of(acts.out.view(), 0, q_heads, width), acts.softmax_lse,
                              heads_of(d_out, 0, q_heads, width), softmax_scale_, dq, grads);
    if (rows.shared.any()) return_shared(ctx, rows, d_gathered, d_key_value);
  }
  if (later) {
    const TensorView dk_rows = d_key_value.columns(0, kv_width());
    const TensorView dv_rows = d_key_value.columns(kv_width(), kv_width());
    add_rows(ctx, dk_rows, later->dk.reshape({tokens, kv_width()}), dk_rows);
    add_rows(ctx, dv_rows, later->dv.reshape({tokens, kv_width()}), dv_rows);
  }

  rope_backward(ctx, rows.rope, rows.positions, heads_of(d_qkv, 0, q_heads + kv_heads, width));
  if (config_.qk_norm) {
    q_norm_->backward(ctx, heads_of(acts.qkv.view(), 0, q_heads, width), acts.q_rstd, dq,
                      std::nullopt, dq);
    k_norm_->backward(ctx, heads_of(acts.qkv.view(), q_width(), kv_heads, width), acts.k_rstd, dk,
                      std::nullopt, dk);
  }
  const TraceScope scope(ctx.trace, TraceKind::kModule, "qkv_proj_backward");
  qkv_.backward(ctx, x, d_qkv, dx);
}

void SelfAttention::collect(std::vector<Parameter*>& parameters) {
  qkv_.collect(parameters);
  if (q_norm_) q_norm_->collect(parameters);
  if (k_norm_) k_norm_->collect(parameters);
  output_.collect(parameters);
}

}  // namespace coppice
