#include "model/memory_plan.hpp"

#include <algorithm>

#include "layers/rms_norm.hpp"
#include "layers/rope.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "parallel/gradient_reducer.hpp"

namespace coppice {
namespace {

// Enough rows for the matrix multiplication to run at its full rate with real vocabularies, and
// little beside a model's other memory.
constexpr std::int64_t kLogitBytes = std::int64_t{128} << 20;
constexpr std::int64_t kRopeRoom = 512;

}  // namespace

TransformerBlockConfig block_config(const ModelConfig& c, std::int64_t layer) {
  return {.name = fmt::format("model.layers.{}", layer),
          .hidden_size = c.hidden_size,
          .intermediate_size = c.intermediate_size,
          .num_attention_heads = c.num_attention_heads,
          .num_key_value_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .qkv_bias = c.qkv_bias,
          .qk_norm = c.qk_norm,
          .rms_norm_eps = c.rms_norm_eps};
}

std::int64_t head_chunk_rows(DType dtype, const VocabShard& vocab, std::int64_t edge_rows) {
  return logprob_chunk_rows(dtype, edge_rows, vocab.padded_rows, kLogitBytes);
}

std::vector<std::int64_t> head_rows_of_ranks(const ParallelContext& parallel, std::int64_t rows,
                                             const HeadEdges& edges) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(parallel.tensor.size()),
                                   edges.row_count());
  if (!parallel.shards_sequence()) return counts;
  std::fill(counts.begin(), counts.end(), 0);
  for (const auto row : edges.rows) {
    ++counts[static_cast<std::size_t>(row / parallel.sequence_rows(rows))];
  }
  return counts;
}

std::int64_t rope_positions(const ModelConfig& config, std::int64_t longest_sequence) {
  const auto rounded = (longest_sequence + kRopeRoom - 1) / kRopeRoom * kRopeRoom;
  return std::min(rounded, config.max_position_embeddings);
}

std::int64_t longest_sequence(const PackedBatch& batch) {
  std::int64_t longest = 0;
  for (const std::int64_t position : batch.positions) longest = std::max(longest, position + 1);
  return longest;
}

std::int64_t activation_bytes(const RankSizes& of, Recompute recompute) {
  const auto layers = of.config.num_hidden_layers, width = of.config.hidden_size;
  const auto rows = of.batch.rows();
  return (layers + 1) * Arena::leased_bytes(of.dtype, {of.parallel.sequence_rows(rows), width}) +
         layers * of.block.activation_bytes(rows, recompute, of.batch.shared.total()) +
         Arena::leased_bytes(of.dtype, {of.head_rows, width}) +
         Arena::leased_bytes(of.dtype, {of.edges.row_count(), width}) +
         Arena::leased_bytes(of.dtype, {of.head_rows});
}

std::int64_t scratch_bytes(const RankSizes& of, PassKind pass, Recompute recompute, int threads) {
  const auto width = of.config.hidden_size, rows = of.batch.rows();
  const bool sharded = of.parallel.shards_sequence();
  const AttentionPlan& plan = of.batch.plan;
  const auto all_head = Arena::leased_bytes(of.dtype, {of.edges.row_count(), width});
  const auto own_head = Arena::leased_bytes(of.dtype, {of.head_rows, width});
  const auto embedding = sharded ? Arena::leased_bytes(of.dtype, {rows, width}) : 0;
  const auto logits = logprob_scratch_bytes(
      of.dtype, of.edges, of.vocab.size, head_chunk_rows(of.dtype, of.vocab, of.edges.row_count()),
      of.parallel.tensor.size());
  if (pass == PassKind::kScore) {
    const auto head = own_head + Arena::leased_bytes(of.dtype, {of.head_rows}) +
                      (sharded ? all_head : 0) + std::max(logits, sharded ? own_head : 0);
    return 2 * Arena::leased_bytes(of.dtype, {of.parallel.sequence_rows(rows), width}) +
           std::max(
               {of.block.forward_scratch_bytes(plan, Recompute::kBlock, threads, of.batch.shared),
                head, embedding});
  }
  const auto norm = rms_norm_scratch_bytes(of.dtype, of.head_rows, width);
  const auto head = all_head + std::max(logits, norm + (sharded ? own_head : 0));
  return std::max({of.block.forward_scratch_bytes(plan, recompute, threads, of.batch.shared), head,
                   of.block.backward_scratch_bytes(plan, recompute, threads, of.batch.shared),
                   embedding});
}

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const auto& line : lines) sum += line.bytes;
  return sum;
}

MemoryPlanner::MemoryPlanner(ModelConfig config, DType dtype, PassKind pass, Recompute recompute,
                             int threads, const PlannedRank& rank)
    : config_(std::move(config)),
      dtype_(dtype),
      pass_(pass),
      recompute_(recompute),
      threads_(threads),
      rank_(rank),
      tensor_(make_absent_communicator(0, rank.tensor_size)),  // no rank holds more than the first
      self_(make_self_communicator()),
      parallel_{*tensor_, *self_, *self_, rank.sequence_parallel},
      vocab_(vocab_shard(parallel_, config_.vocab_size)),
      block_(parallel_, {memory_, dtype, WithGradients::kNo}, block_config(config_, 0)) {
  std::vector<Parameter*> parameters;
  block_.collect(parameters);
  for (const Parameter* parameter : parameters) {
    block_parameters_.push_back(parameter->value.shape());
  }
}

void MemoryPlanner::add(const PackedBatch& batch) {
  const HeadEdges edges(batch.edges);
  for (const auto head_rows : head_rows_of_ranks(parallel_, batch.rows(), edges)) {
    const RankSizes sizes{config_, dtype_, parallel_, vocab_, block_, batch, edges, head_rows};
    activations_ = std::max(activations_, activation_bytes(sizes, recompute_));
    scratch_ = std::max(scratch_, scratch_bytes(sizes, pass_, recompute_, threads_));
  }
  rope_table_ = std::max(
      rope_table_,
      RopeTable::bytes(dtype_, config_.head_dim, rope_positions(config_, longest_sequence(batch))));
}

MemoryPlan MemoryPlanner::plan() const {
  // Parameters, and the rows of each that one shard of the optimizer state holds at most.
  std::int64_t parameters = 0, sharded = 0;
  const auto count = [&](const Shape& shape, std::int64_t times) {
    const auto row_elements = shape.with(0, 1).numel();
    parameters += times * shape.numel();
    sharded += times * row_elements * ((shape[0] + rank_.moment_shards - 1) / rank_.moment_shards);
  };
  const Shape vocabulary{vocab_.padded_rows, config_.hidden_size};
  count(vocabulary, config_.tie_word_embeddings ? 1 : 2);
  count({config_.hidden_size}, 1);
  for (const Shape& shape : block_parameters_) count(shape, config_.num_hidden_layers);
  MemoryPlan plan;
  plan.lines.push_back({"parameters", parameters * size_of(dtype_)});
  if (pass_ == PassKind::kTrain) {
    plan.lines.push_back({"gradients", parameters * size_of(dtype_)});
    plan.lines.push_back({"moments", 2 * sharded * size_of(dtype_)});
    plan.lines.push_back({"activations", activations_});
  }
  plan.lines.push_back({"scratch", scratch_});
  plan.lines.push_back({"rope_table", rope_table_});
  return plan;
}

}  // namespace coppice
