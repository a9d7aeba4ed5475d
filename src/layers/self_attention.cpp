// Self-attention, composed of its ops. Heads are views of columns; nothing is transposed or copied.
#include "layers/self_attention.hpp"

#include <cmath>

#include "layers/rows.hpp"

namespace coppice {
namespace {

/// `heads` heads from column `begin` of a matrix of rows, as [T, heads, D].
template <class View>
View heads_of(View matrix, std::int64_t begin, std::int64_t heads, std::int64_t head_dim) {
  return matrix.columns(begin, heads * head_dim).reshape({matrix.shape()[0], heads, head_dim});
}

}  // namespace

SelfAttention::SelfAttention(const ParallelContext& parallel, const ParameterStorage& storage,
                             const SelfAttentionConfig& config)
    : config_(config),
      dtype_(storage.dtype),
      softmax_scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      qkv_(parallel, storage,
           {.name = config.name + ".qkv_proj",
            .in_features = config.hidden_size,
            .parts = {{config.name + ".q_proj", q_width()},
                      {config.name + ".k_proj", kv_width()},
                      {config.name + ".v_proj", kv_width()}},
            .bias = config.qkv_bias}),
      output_(parallel, storage,
              {.name = config.name + ".o_proj",
               .in_features = q_width(),
               .parts = {{config.name + ".o_proj", config.hidden_size}}}) {
  COPPICE_CHECK(config.num_key_value_heads > 0 &&
                    config.num_attention_heads % config.num_key_value_heads == 0,
                "{}: {} query heads for {} key-value heads", config.name,
                config.num_attention_heads, config.num_key_value_heads);
  if (config.qk_norm) {
    q_norm_.emplace(storage, config.name + ".q_norm", config.head_dim, config.rms_norm_eps);
    k_norm_.emplace(storage, config.name + ".k_norm", config.head_dim, config.rms_norm_eps);
  }
}

void SelfAttention::lease_projections(Arena& arena, std::int64_t tokens, Activations& acts) const {
  acts.qkv = arena.tensor(dtype_, {tokens, q_width() + 2 * kv_width()});
  if (!config_.qk_norm) return;
  acts.qk = arena.tensor(dtype_, {tokens, q_width() + kv_width()});
  acts.q_rstd = arena.tensor(dtype_, {tokens, config_.num_attention_heads});
  acts.k_rstd = arena.tensor(dtype_, {tokens, config_.num_key_value_heads});
}

void SelfAttention::lease_output(Arena& arena, std::int64_t tokens, Activations& acts) const {
  acts.out = arena.tensor(dtype_, {tokens, q_width()});
  acts.softmax_lse = arena.tensor(dtype_, {config_.num_attention_heads, tokens});
}

std::int64_t SelfAttention::projection_bytes(std::int64_t tokens) const {
  auto bytes = Arena::leased_bytes(dtype_, {tokens, q_width() + 2 * kv_width()});
  if (config_.qk_norm) {
    bytes += Arena::leased_bytes(dtype_, {tokens, q_width() + kv_width()}) +
             Arena::leased_bytes(dtype_, {tokens, config_.num_attention_heads}) +
             Arena::leased_bytes(dtype_, {tokens, config_.num_key_value_heads});
  }
  return bytes;
}

std::int64_t SelfAttention::output_bytes(std::int64_t tokens) const {
  return Arena::leased_bytes(dtype_, {tokens, q_width()}) +
         Arena::leased_bytes(dtype_, {config_.num_attention_heads, tokens});
}

std::int64_t SelfAttention::forward_scratch_bytes(const AttentionPlan& plan, int threads) const {
  return prefix_attention_forward_scratch_bytes(plan, config_.num_attention_heads,
                                                config_.num_key_value_heads, config_.head_dim,
                                                dtype_, threads);
}

std::int64_t SelfAttention::backward_scratch_bytes(const AttentionPlan& plan, int threads) const {
  const auto tokens = plan.query_rows();
  auto inner = prefix_attention_backward_scratch_bytes(plan, config_.num_attention_heads,
                                                       config_.num_key_value_heads,
                                                       config_.head_dim, dtype_, threads);
  if (config_.qk_norm) {
    inner = std::max(inner, rms_norm_scratch_bytes(dtype_, tokens, config_.head_dim));
  }
  return Arena::leased_bytes(dtype_, {tokens, q_width()}) +
         Arena::leased_bytes(dtype_, {tokens, q_width() + 2 * kv_width()}) + inner;
}

ConstTensorView SelfAttention::queries(const Activations& acts) const {
  const ConstTensorView source = config_.qk_norm ? acts.qk : acts.qkv;
  return heads_of(source, 0, config_.num_attention_heads, config_.head_dim);
}

KeySpace SelfAttention::key_space(const Activations& acts) const {
  const ConstTensorView keys = config_.qk_norm ? acts.qk : acts.qkv;
  const ConstTensorView values = acts.qkv;
  const auto heads = config_.num_key_value_heads, width = config_.head_dim;
  return {.k = heads_of(keys, q_width(), heads, width),
          .v = heads_of(values, q_width() + kv_width(), heads, width)};
}

void SelfAttention::project(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                            Activations& acts) const {
  const auto q_heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const auto width = config_.head_dim;
  qkv_.forward(ctx, x, acts.qkv);
  TensorView turned = acts.qkv;
  if (config_.qk_norm) {
    turned = acts.qk;
    q_norm_->forward(ctx, heads_of(acts.qkv.view(), 0, q_heads, width),
                     heads_of(turned, 0, q_heads, width), acts.q_rstd);
    k_norm_->forward(ctx, heads_of(acts.qkv.view(), q_width(), kv_heads, width),
                     heads_of(turned, q_width(), kv_heads, width), acts.k_rstd);
  }
  rope_forward(ctx, rows.rope, rows.positions, heads_of(turned, 0, q_heads + kv_heads, width));
}

void SelfAttention::attend(ExecContext& ctx, const PackedRows& rows, Activations& acts) const {
  const KeySpace own = key_space(acts);
  prefix_attention_forward(
      ctx, rows.plan, queries(acts), {&own, 1}, softmax_scale_,
      heads_of(acts.out.view(), 0, config_.num_attention_heads, config_.head_dim),
      acts.softmax_lse);
}

void SelfAttention::output(ExecContext& ctx, const Activations& acts, TensorView y) const {
  output_.forward(ctx, acts.out, y);
}

void SelfAttention::forward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                            Activations& acts, TensorView y) const {
  project(ctx, x, rows, acts);
  attend(ctx, rows, acts);
  output(ctx, acts, y);
}

void SelfAttention::backward(ExecContext& ctx, ConstTensorView x, const PackedRows& rows,
                             const Activations& acts, ConstTensorView dy, TensorView dx,
                             std::optional<KeyValueGrad> later) {
  const auto q_heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const auto width = config_.head_dim, tokens = x.shape()[0];
  ScratchScope scratch(ctx.scratch);
  TensorView d_out = scratch.like(acts.out);
  TensorView d_qkv = scratch.like(acts.qkv);
  output_.backward(ctx, acts.out, dy, d_out);

  const KeySpace own = key_space(acts);
  const TensorView dq = heads_of(d_qkv, 0, q_heads, width);
  const TensorView dk = heads_of(d_qkv, q_width(), kv_heads, width);
  const KeySpaceGrad own_grad{.dk = dk,
                              .dv = heads_of(d_qkv, q_width() + kv_width(), kv_heads, width)};
  prefix_attention_backward(ctx, rows.plan, queries(acts), {&own, 1},
                            heads_of(acts.out.view(), 0, q_heads, width), acts.softmax_lse,
                            heads_of(d_out, 0, q_heads, width), softmax_scale_, dq, {&own_grad, 1});
  if (later) {
    const TensorView dk_rows = d_qkv.columns(q_width(), kv_width());
    const TensorView dv_rows = d_qkv.columns(q_width() + kv_width(), kv_width());
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
  qkv_.backward(ctx, x, d_qkv, dx);
}

void SelfAttention::collect(std::vector<Parameter*>& parameters) {
  qkv_.collect(parameters);
  if (q_norm_) q_norm_->collect(parameters);
  if (k_norm_) k_norm_->collect(parameters);
  output_.collect(parameters);
}

}  // namespace coppice
