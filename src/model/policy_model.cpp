#include "model/policy_model.hpp"

#include "core/stopwatch.hpp"
#include "layers/rows.hpp"
#include "model/memory_plan.hpp"
#include "parallel/regions.hpp"

namespace coppice {

PolicyModel::PolicyModel(ModelConfig config, const ParallelContext& parallel, DType compute,
                         Memory& memory, WithGradients gradients)
    : config_(std::move(config)),
      dtype_(compute),
      memory_(memory),
      parallel_(parallel),
      vocab_(vocab_shard(parallel, config_.vocab_size)),
      embedding_(parallel, {memory, compute, gradients}, "model.embed_tokens", config_.vocab_size,
                 config_.hidden_size),
      final_norm_(parallel, {memory, compute, gradients}, "model.norm", config_.hidden_size,
                  config_.rms_norm_eps,
                  parallel.shards_sequence() ? ReductionGroup::kTensor : ReductionGroup::kNone),
      activations_(memory) {
  const ParameterStorage storage{memory, compute, gradients};
  // Parameters are known by their addresses: blocks must not move once the first is made.
  blocks_.reserve(static_cast<std::size_t>(config_.num_hidden_layers));
  for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    blocks_.emplace_back(parallel, storage, block_config(config_, layer));
  }
  if (!config_.tie_word_embeddings) {
    lm_head_ = make_vocab_weight(storage, "lm_head.weight", vocab_, config_.hidden_size);
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

ConstTensorView PolicyModel::head_weight() const {
  return lm_head_ ? lm_head_->value : embedding_.weight().value;
}

std::optional<TensorView> PolicyModel::head_grad() {
  Parameter& parameter = lm_head_ ? *lm_head_ : embedding_.weight();
  if (!parameter.trainable) return std::nullopt;
  return parameter.grad;
}

VocabRanks PolicyModel::vocabulary() const { return {parallel_.tensor, vocab_}; }

std::int64_t PolicyModel::chunk_rows(const HeadEdges& edges) const {
  return head_chunk_rows(dtype_, vocab_, edges.row_count());
}

RankSizes PolicyModel::sizes(const PackedBatch& batch, const Activations& acts) const {
  return {.config = config_,
          .dtype = dtype_,
          .parallel = parallel_,
          .vocab = vocab_,
          .block = blocks_.front(),
          .batch = batch,
          .edges = acts.edges,
          .head_rows = std::ssize(acts.head_rows)};
}

void PolicyModel::note(const char* phase, std::int64_t layer) const {
  if (parallel_.activity == nullptr) return;
  parallel_.activity->phase = phase;
  parallel_.activity->layer = static_cast<std::int32_t>(layer);
}

PackedRows PolicyModel::rows_of_pass(const PackedBatch& batch) const {
  return {.plan = batch.plan, .positions = batch.positions, .rope = *rope_, .shared = batch.shared};
}

void PolicyModel::prepare(const PackedBatch& batch, Activations& acts) {
  COPPICE_CHECK(
      std::ssize(batch.positions) == batch.rows() && batch.plan.query_rows() == batch.rows(),
      "a batch of {} token ids, {} positions and a plan for {} rows", batch.rows(),
      batch.positions.size(), batch.plan.query_rows());
  COPPICE_CHECK(batch.rows() % parallel_.row_multiple() == 0,
                "{} rows for {} tensor-parallel ranks under sequence parallelism", batch.rows(),
                parallel_.row_multiple());
  acts.edges = HeadEdges(batch.edges);
  acts.head_rank_rows = head_rows_of_ranks(parallel_, batch.rows(), acts.edges);
  const auto rows_here = parallel_.sequence_rows(batch.rows());
  const auto first_row = parallel_.shards_sequence() ? parallel_.tensor.rank() * rows_here : 0;
  acts.head_rows.clear();
  for (const auto row : acts.edges.rows) {
    if (row >= first_row && row < first_row + rows_here) acts.head_rows.push_back(row - first_row);
  }
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
  acts.streams.clear();
  acts.blocks.clear();
  acts.arena.reset();
  acts.arena.reserve(activation_bytes(sizes(batch, acts), recompute));
  ctx.scratch.reserve(scratch_bytes(sizes(batch, acts), PassKind::kTrain, recompute, ctx.threads));

  const PackedRows rows = rows_of_pass(batch);
  const Shape stream{parallel_.sequence_rows(batch.rows()), config_.hidden_size};
  acts.streams.push_back(acts.arena.tensor(dtype_, stream));
  note("embedding, forward");
  embedding_.forward(ctx, batch.token_ids, acts.streams.front());
  for (const auto& block : blocks_) {
    const TraceScope scope(ctx.trace, TraceKind::kLayer, "layer",
                           {.index = std::ssize(acts.blocks)});
    note("forward", std::ssize(acts.blocks));
    auto& block_acts = acts.blocks.emplace_back(
        block.lease_activations(acts.arena, batch.rows(), recompute, batch.shared.total()));
    Tensor next = acts.arena.tensor(dtype_, stream);
    block.forward(ctx, acts.streams.back(), rows, block_acts, next);
    acts.streams.push_back(std::move(next));
  }
  note("head, forward");
  const auto head_rows = std::ssize(acts.head_rows);
  acts.head_input = acts.arena.tensor(dtype_, {head_rows, config_.hidden_size});
  acts.head_normed = acts.arena.tensor(dtype_, {acts.edges.row_count(), config_.hidden_size});
  acts.head_rstd = acts.arena.tensor(accumulation_of(dtype_), {head_rows});
  gather_rows(ctx, acts.streams.back(), acts.head_rows, acts.head_input);
  norm_head(ctx, acts, acts.head_input, acts.head_normed, acts.head_rstd);
}

// Norms this rank's head rows and brings all of them to every tensor-parallel rank.
void PolicyModel::norm_head(ExecContext& ctx, const Activations& acts, ConstTensorView input,
                            TensorView normed, TensorView rstd) const {
  if (!parallel_.shards_sequence()) return final_norm_.forward(ctx, input, normed, rstd);
  ScratchScope scratch(ctx.scratch);
  const TensorView own = scratch.like(input);
  final_norm_.forward(ctx, input, own, rstd);
  GatherFromSequence::forward(ctx, parallel_.tensor, own, normed, acts.head_rank_rows);
}

void PolicyModel::head_forward(ExecContext& ctx, const Activations& acts, double temperature,
                               std::span<double> logprobs, std::span<double> entropies) const {
  logprob_forward(ctx, acts.head_normed, head_weight(), acts.edges, temperature,
                  chunk_rows(acts.edges), logprobs, entropies, vocabulary());
}

void PolicyModel::head_backward(ExecContext& ctx, Activations& acts, double temperature,
                                std::span<const double> c, std::span<const double> e) {
  note("head, backward");
  ScratchScope scratch(ctx.scratch);
  const TensorView d_normed =
      scratch.lease(partial_dtype(parallel_.tensor, dtype_), acts.head_normed.shape());
  logprob_backward(ctx, acts.head_normed, head_weight(), acts.edges, temperature,
                   chunk_rows(acts.edges), c, e, d_normed, head_grad(), vocabulary());
  final_norm_backward(ctx, acts, d_normed);
}

// d_normed is this rank's part of a sum over the tensor-parallel ranks, for all head rows.
void PolicyModel::final_norm_backward(ExecContext& ctx, Activations& acts, TensorView d_normed) {
  ScratchScope scratch(ctx.scratch);
  const bool in_place = !parallel_.shards_sequence() && d_normed.dtype() == dtype_;
  const TensorView d_own = in_place ? d_normed : scratch.like(acts.head_input);
  if (parallel_.shards_sequence()) {
    GatherFromSequence::backward(ctx, parallel_.tensor, d_normed, d_own, acts.head_rank_rows);
  } else {
    CopyToTensorParallel::backward(ctx, parallel_.tensor, d_normed, d_own);
  }
  final_norm_.backward(ctx, acts.head_input, acts.head_rstd, d_own, std::nullopt, d_own);
  // What left the last block was read for the last time when head rows were gathered: its memory
  // carries the gradient of the residual stream from here down.
  scatter_rows(ctx, d_own, acts.head_rows, acts.streams.back());
}

void PolicyModel::backward(ExecContext& ctx, const PackedBatch& batch, Activations& acts,
                           const GradientsDone& done) {
  tell(ctx, done, head_parameters());
  const PackedRows rows = rows_of_pass(batch);
  const TensorView d_stream = acts.streams.back();
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    const TraceScope scope(ctx.trace, TraceKind::kLayer, "layer",
                           {.index = static_cast<std::int64_t>(layer)});
    note("backward", static_cast<std::int64_t>(layer));
    blocks_[layer].backward(ctx, acts.streams[layer], rows, std::move(acts.blocks[layer]), d_stream,
                            d_stream);
    std::vector<Parameter*> of_block;
    blocks_[layer].collect(of_block);
    tell(ctx, done, of_block);
  }
  note("embedding, backward");
  embedding_.backward(ctx, batch.token_ids, d_stream);
  std::vector<Parameter*> of_embedding;
  embedding_.collect(of_embedding);
  tell(ctx, done, of_embedding);
}

void PolicyModel::forward_backward(ExecContext& ctx, const PackedBatch& batch, Recompute recompute,
                                   double temperature, const EdgeCoefficients& coefficients,
                                   std::span<double> logprobs, std::span<double> entropies,
                                   PhaseSeconds* seconds, const GradientsDone& done) {
  Stopwatch watch(ctx.stream);
  const auto timed = [&](const char* phase, const auto& work) {
    const TraceScope scope(ctx.trace, TraceKind::kPhase, phase);
    watch.lap();
    work();
    return watch.lap();
  };
  const double body_forward =
      timed("forward", [&] { forward(ctx, batch, recompute, activations_); });
  const double head = timed("head", [&] {
    ScratchScope scratch(ctx.scratch);
    const TensorView d_normed =
        scratch.lease(partial_dtype(parallel_.tensor, dtype_), activations_.head_normed.shape());
    logprob_forward_backward(ctx, activations_.head_normed, head_weight(), activations_.edges,
                             temperature, chunk_rows(activations_.edges), coefficients, logprobs,
                             entropies, d_normed, head_grad(), vocabulary());
    final_norm_backward(ctx, activations_, d_normed);
  });
  const double body_backward = timed("backward", [&] { backward(ctx, batch, activations_, done); });
  if (seconds != nullptr) {
    // Of the fused head's three matrix multiplications one is the forward's.
    seconds->forward += body_forward + head / 3;
    seconds->backward += body_backward + 2 * head / 3;
  }
}

void PolicyModel::score(ExecContext& ctx, const PackedBatch& batch, double temperature,
                        std::span<double> logprobs, std::span<double> entropies) {
  prepare(batch, activations_);
  const HeadEdges& edges = activations_.edges;
  ctx.scratch.reserve(
      scratch_bytes(sizes(batch, activations_), PassKind::kScore, Recompute::kBlock, ctx.threads));
  ScratchScope scratch(ctx.scratch);
  const PackedRows rows = rows_of_pass(batch);
  TensorView x =
      scratch.lease(dtype_, {parallel_.sequence_rows(batch.rows()), config_.hidden_size});
  TensorView y = scratch.like(x);
  note("embedding, forward");
  embedding_.forward(ctx, batch.token_ids, x);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const TraceScope scope(ctx.trace, TraceKind::kLayer, "layer",
                           {.index = static_cast<std::int64_t>(layer)});
    note("forward", static_cast<std::int64_t>(layer));
    ScratchScope block_scratch(ctx.scratch);
    auto nothing_kept =
        blocks_[layer].lease_activations(block_scratch.arena(), batch.rows(), Recompute::kBlock);
    blocks_[layer].forward(ctx, x, rows, nothing_kept, y);
    std::swap(x, y);
  }
  note("head, forward");
  const TensorView head =
      scratch.lease(dtype_, {std::ssize(activations_.head_rows), config_.hidden_size});
  const TensorView rstd =
      scratch.lease(accumulation_of(dtype_), {std::ssize(activations_.head_rows)});
  const TensorView normed = parallel_.shards_sequence()
                                ? scratch.lease(dtype_, {edges.row_count(), config_.hidden_size})
                                : head;
  gather_rows(ctx, x, activations_.head_rows, head);
  norm_head(ctx, activations_, head, normed, rstd);
  logprob_forward(ctx, normed, head_weight(), edges, temperature, chunk_rows(edges), logprobs,
                  entropies, vocabulary());
}

}  // namespace coppice
