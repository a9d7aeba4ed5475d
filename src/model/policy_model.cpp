#include "model/policy_model.hpp"

#include <cstring>

#include "core/parallel_for.hpp"
#include "core/rng.hpp"
#include "core/stopwatch.hpp"
#include "layers/rows.hpp"
#include "model/memory_plan.hpp"

namespace coppice {
PolicyModel::PolicyModel(ModelConfig config, const ParallelContext& parallel, DType compute,
                         Memory& memory, WithGradients gradients)
    : config_(std::move(config)),
      dtype_(compute),
      memory_(memory),
      embedding_(parallel, {memory, compute, gradients}, "model.embed_tokens", config_.vocab_size,
                 config_.hidden_size),
      final_norm_({memory, compute, gradients}, "model.norm", config_.hidden_size,
                  config_.rms_norm_eps),
      activations_(memory) {
  const ParameterStorage storage{memory, compute, gradients};
  // Parameters are known by their addresses: blocks must not move once the first is made.
  blocks_.reserve(static_cast<std::size_t>(config_.num_hidden_layers));
  for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    blocks_.emplace_back(parallel, storage, block_config(config_, layer));
  }
  if (!config_.tie_word_embeddings) {
    lm_head_ = make_parameter(
        storage, "lm_head.weight",
        {{"lm_head.weight", Shard::whole({config_.vocab_size, config_.hidden_size})}},
        WeightDecay::kYes);
  }
}

std::vector<Parameter*> PolicyModel::parameters() {
  std::vector<Parameter*> parameters;
  embedding_.collect(parameters);
  for (auto& block : blocks_) block.collect(parameters);
  final_norm_.collect(parameters);
  if (lm_head_) parameters.push_back(&*lm_head_);
  return parameters;
}

void PolicyModel::zero_gradients(ExecContext& ctx) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  struct Piece {
    std::byte* begin;
    std::int64_t bytes;
  };
  std::vector<Piece> pieces;
  for (Parameter* parameter : parameters()) {
    if (!parameter->trainable) continue;
    for (std::int64_t at = 0; at < parameter->grad.size_bytes(); at += kBlock) {
      pieces.push_back({parameter->grad.view().bytes() + at,
                        std::min(kBlock, parameter->grad.size_bytes() - at)});
    }
  }
  parallel_for(ctx, std::ssize(pieces), [&](std::int64_t i) {
    const auto& piece = pieces[static_cast<std::size_t>(i)];
    std::memset(piece.begin, 0, static_cast<std::size_t>(piece.bytes));
  });
}

ConstTensorView PolicyModel::head_weight() const {
  return lm_head_ ? lm_head_->value : embedding_.weight().value;
}

std::optional<TensorView> PolicyModel::head_grad() {
  Parameter& parameter = lm_head_ ? *lm_head_ : embedding_.weight();
  if (!parameter.trainable) return std::nullopt;
  return parameter.grad;
}

std::int64_t PolicyModel::chunk_rows(const HeadEdges& edges) const {
  return head_chunk_rows(config_, dtype_, edges.row_count());
}

PackedRows PolicyModel::rows_of_pass(const PackedBatch& batch) const {
  return {.plan = batch.plan, .positions = batch.positions, .rope = *rope_};
}

void PolicyModel::prepare(const PackedBatch& batch, Activations& acts) {
  COPPICE_CHECK(
      std::ssize(batch.positions) == batch.rows() && batch.plan.query_rows() == batch.rows(),
      "a batch of {} token ids, {} positions and a plan for {} rows", batch.rows(),
      batch.positions.size(), batch.plan.query_rows());
  acts.edges = HeadEdges(batch.edges);
  const auto longest = longest_sequence(batch);
  COPPICE_CHECK(longest <= config_.max_position_embeddings,
                "a sequence of {} tokens for a model of {} positions", longest,
                config_.max_position_embeddings);
  if (!rope_ || rope_->positions() < longest) {
    rope_.reset();  // the old table goes before the new one comes
    rope_.emplace(memory_, dtype_, config_.rope, config_.head_dim,
                  rope_positions(config_, longest));
  }
}

void PolicyModel::forward(ExecContext& ctx, const PackedBatch& batch, Recompute recompute,
                          Activations& acts) {
  prepare(batch, acts);
  const auto tokens = batch.rows();
  acts.streams.clear();
  acts.blocks.clear();
  acts.arena.reset();
  acts.arena.reserve(
      activation_bytes(config_, dtype_, recompute, blocks_.front(), batch, acts.edges));
  ctx.scratch.reserve(scratch_bytes(config_, dtype_, PassKind::kTrain, recompute, ctx.threads,
                                    blocks_.front(), batch, acts.edges));

  const PackedRows rows = rows_of_pass(batch);
  acts.streams.push_back(acts.arena.tensor(dtype_, {tokens, config_.hidden_size}));
  embedding_.forward(ctx, batch.token_ids, acts.streams.front());
  for (const auto& block : blocks_) {
    auto& block_acts =
        acts.blocks.emplace_back(block.lease_activations(acts.arena, tokens, recompute));
    Tensor next = acts.arena.tensor(dtype_, {tokens, config_.hidden_size});
    block.forward(ctx, acts.streams.back(), rows, block_acts, next);
    acts.streams.push_back(std::move(next));
  }
  const auto head_rows = acts.edges.row_count();
  acts.head_input = acts.arena.tensor(dtype_, {head_rows, config_.hidden_size});
  acts.head_normed = acts.arena.tensor(dtype_, {head_rows, config_.hidden_size});
  acts.head_rstd = acts.arena.tensor(dtype_, {head_rows});
  gather_rows(ctx, acts.streams.back(), acts.edges.rows, acts.head_input);
  final_norm_.forward(ctx, acts.head_input, acts.head_normed, acts.head_rstd);
}

void PolicyModel::head_forward(ExecContext& ctx, const Activations& acts, double temperature,
                               std::span<double> logprobs, std::span<double> entropies) const {
  logprob_forward(ctx, acts.head_normed, head_weight(), acts.edges, temperature,
                  chunk_rows(acts.edges), logprobs, entropies);
}

void PolicyModel::head_backward(ExecContext& ctx, Activations& acts, double temperature,
                                std::span<const double> c, std::span<const double> e) {
  ScratchScope scratch(ctx.scratch);
  const TensorView d_normed = scratch.like(acts.head_normed);
  logprob_backward(ctx, acts.head_normed, head_weight(), acts.edges, temperature,
                   chunk_rows(acts.edges), c, e, d_normed, head_grad());
  final_norm_backward(ctx, acts, d_normed);
}

void PolicyModel::final_norm_backward(ExecContext& ctx, Activations& acts, TensorView d_normed) {
  final_norm_.backward(ctx, acts.head_input, acts.head_rstd, d_normed, std::nullopt, d_normed);
  // What left the last block was read for the last time when head rows were gathered: its memory
  // carries the gradient of the residual stream from here down.
  scatter_rows(ctx, d_normed, acts.edges.rows, acts.streams.back());
}

void PolicyModel::backward(ExecContext& ctx, const PackedBatch& batch, Activations& acts) {
  const PackedRows rows = rows_of_pass(batch);
  const TensorView d_stream = acts.streams.back();
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    blocks_[layer].backward(ctx, acts.streams[layer], rows, std::move(acts.blocks[layer]), d_stream,
                            d_stream);
  }
  embedding_.backward(ctx, batch.token_ids, d_stream);
}

void PolicyModel::forward_backward(ExecContext& ctx, const PackedBatch& batch, Recompute recompute,
                                   double temperature, const EdgeCoefficients& coefficients,
                                   std::span<double> logprobs, std::span<double> entropies,
                                   PhaseSeconds* seconds) {
  Stopwatch watch(ctx.stream);
  forward(ctx, batch, recompute, activations_);
  const double body_forward = watch.lap();
  {
    ScratchScope scratch(ctx.scratch);
    const TensorView d_normed = scratch.like(activations_.head_normed);
    logprob_forward_backward(ctx, activations_.head_normed, head_weight(), activations_.edges,
                             temperature, chunk_rows(activations_.edges), coefficients, logprobs,
                             entropies, d_normed, head_grad());
    final_norm_backward(ctx, activations_, d_normed);
  }
  const double head = watch.lap();
  backward(ctx, batch, activations_);
  if (seconds != nullptr) {
    // Of the fused head's three matrix multiplications one is the forward's.
    seconds->forward += body_forward + head / 3;
    seconds->backward += watch.lap() + 2 * head / 3;
  }
}

void PolicyModel::score(ExecContext& ctx, const PackedBatch& batch, double temperature,
                        std::span<double> logprobs, std::span<double> entropies) {
  prepare(batch, activations_);
  const HeadEdges& edges = activations_.edges;
  ctx.scratch.reserve(scratch_bytes(config_, dtype_, PassKind::kScore, Recompute::kBlock,
                                    ctx.threads, blocks_.front(), batch, edges));
  ScratchScope scratch(ctx.scratch);
  const PackedRows rows = rows_of_pass(batch);
  TensorView x = scratch.lease(dtype_, {batch.rows(), config_.hidden_size});
  TensorView y = scratch.like(x);
  embedding_.forward(ctx, batch.token_ids, x);
  for (const auto& block : blocks_) {
    auto nothing_kept = block.lease_activations(scratch.arena(), batch.rows(), Recompute::kBlock);
    block.forward(ctx, x, rows, nothing_kept, y);
    std::swap(x, y);
  }
  const TensorView head = scratch.lease(dtype_, {edges.row_count(), config_.hidden_size});
  const TensorView rstd = scratch.lease(dtype_, {edges.row_count()});
  gather_rows(ctx, x, edges.rows, head);
  final_norm_.forward(ctx, head, head, rstd);
  logprob_forward(ctx, head, head_weight(), edges, temperature, chunk_rows(edges), logprobs,
                  entropies);
}

void PolicyModel::initialize(std::uint64_t seed) {
  for (Parameter* parameter : parameters()) {
    for (const ParameterPart& part : parameter->parts) {
      const TensorView values = coppice::rows_of(part, parameter->value);
      COPPICE_CHECK(part.shard == Shard::whole(part.shard.local_shape),
                    "{} is sharded, which initialize does not know yet", part.name);
      const RandomStream stream(seed, "init/" + part.name);
      const bool matrix = values.shape().rank() == 2, bias = part.name.ends_with(".bias");
      visit_float(dtype_, [&]<class T>(TypeTag<T>) {
        T* data = values.data<T>();
        for (std::int64_t i = 0; i < values.numel(); ++i) {
          const double value =
              matrix ? config_.initializer_range * stream.normal(static_cast<std::uint64_t>(i))
                     : (bias ? 0.0 : 1.0);
          data[i] = static_cast<T>(value);
        }
      });
    }
  }
}

}  // namespace coppice
