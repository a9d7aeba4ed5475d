#include "model/memory_plan.hpp"

#include <algorithm>

#include "core/gemm.hpp"
#include "layers/rms_norm.hpp"
#include "layers/rope.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "parallel/regions.hpp"
#include "parallel/row_share.hpp"

namespace coppice {
namespace {

// Enough rows for the matrix multiplication to run at its full rate with real vocabularies, and
// little beside a model's other memory. A device needs more of them: every chunk reads the weight
// twice and reads and writes its whole gradient; an H200 has multiplied 200 rows in that time.
constexpr std::int64_t kLogitBytes = std::int64_t{128} << 20;
constexpr std::int64_t kDeviceLogitBytes = std::int64_t{1} << 30;
constexpr std::int64_t kRopeRoom = 512;

// What a single op on CUDA leases on top of everything, wherever it stands in a pass: the workspace
// of a product, or the positions, ids or places of its rows. The norm of the gradients needs less
// than the workspace.
std::int64_t op_scratch_bytes(DType dtype, std::int64_t rows) {
  if (dtype != DType::kBF16) return 0;
  // The most that is sent: the embedding's runs of equal tokens (12 bytes) and the rows in them.
  const auto lists =
      Arena::leased_bytes(DType::kI32, {3 * rows}) + Arena::leased_bytes(DType::kI32, {rows});
  return std::max(gemm_scratch_bytes(dtype), lists);
}

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
  return logprob_chunk_rows(dtype, edge_rows, vocab.padded_rows,
                            dtype == DType::kBF16 ? kDeviceLogitBytes : kLogitBytes);
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
         Arena::leased_bytes(accumulation_of(of.dtype), {of.head_rows});
}

namespace {

std::int64_t composed_scratch_bytes(const RankSizes& of, PassKind pass, Recompute recompute,
                                    int threads) {
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
    const auto head = own_head + Arena::leased_bytes(accumulation_of(of.dtype), {of.head_rows}) +
                      (sharded ? all_head : 0) + std::max(logits, sharded ? own_head : 0);
    return 2 * Arena::leased_bytes(of.dtype, {of.parallel.sequence_rows(rows), width}) +
           std::max(
               {of.block.forward_scratch_bytes(plan, Recompute::kBlock, threads, of.batch.shared),
                head, embedding});
  }
  const auto norm = rms_norm_scratch_bytes(of.dtype, of.head_rows, width);
  // Of a sum over the tensor ranks each has a part, in the type of sums.
  const DType sums = partial_dtype(of.parallel.tensor, of.dtype);
  const auto d_own_head = sharded || sums != of.dtype ? own_head : 0;
  const auto head = Arena::leased_bytes(sums, {of.edges.row_count(), width}) +
                    std::max(logits, norm + d_own_head);
  return std::max({of.block.forward_scratch_bytes(plan, recompute, threads, of.batch.shared), head,
                   of.block.backward_scratch_bytes(plan, recompute, threads, of.batch.shared),
                   embedding});
}

}  // namespace

std::int64_t scratch_bytes(const RankSizes& of, PassKind pass, Recompute recompute, int threads) {
  return composed_scratch_bytes(of, pass, recompute, threads) +
         op_scratch_bytes(of.dtype, of.batch.rows());
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
      block_(parallel_, {memory_, dtype, WithGradients::kNo}, block_config(config_, 0)) {
  for (int tp_rank = 0; tp_rank < rank_.tensor_size; ++tp_rank) {
    const auto tensor = make_absent_communicator(tp_rank, rank_.tensor_size);
    vocab_.push_back(vocab_shard({*tensor, *self_, *self_}, config_.vocab_size));
  }
  const Shape vocabulary{vocab_.front().padded_rows, config_.hidden_size};
  parameters_.assign(config_.tie_word_embeddings ? 1 : 2, vocabulary);
  parameters_.push_back({config_.hidden_size});
  std::vector<Parameter*> of_block;
  block_.collect(of_block);
  for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
    for (const Parameter* parameter : of_block) parameters_.push_back(parameter->value.shape());
  replicas_.assign(static_cast<std::size_t>(rank_.moment_shards),
                   std::vector<RankMaxima>(static_cast<std::size_t>(rank_.tensor_size)));
}

void MemoryPlanner::add(const PackedBatch& batch, PassKind pass, int replica) {
  const auto index = static_cast<std::size_t>(replica);
  if (index >= replicas_.size())
    replicas_.resize(index + 1,
                     std::vector<RankMaxima>(static_cast<std::size_t>(rank_.tensor_size)));
  const HeadEdges edges(batch.edges);
  const auto head_rows = head_rows_of_ranks(parallel_, batch.rows(), edges);
  for (std::size_t tp_rank = 0; tp_rank < head_rows.size(); ++tp_rank) {
    const RankSizes sizes{config_, dtype_, parallel_, vocab_[tp_rank],
                          block_,  batch,  edges,     head_rows[tp_rank]};
    RankMaxima& most = replicas_[index][tp_rank];
    if (pass == PassKind::kTrain)
      most.activations = std::max(most.activations, activation_bytes(sizes, recompute_));
    most.scratch = std::max(most.scratch, scratch_bytes(sizes, pass, recompute_, threads_));
    most.rope_table = std::max(most.rope_table,
                               RopeTable::bytes(dtype_, config_.head_dim,
                                                rope_positions(config_, longest_sequence(batch))));
  }
}

std::int64_t MemoryPlanner::moment_bytes(int replica) const {
  const RowShare share =
      rank_.moment_shards > 1 ? RowShare{replica, rank_.moment_shards} : RowShare{};
  std::int64_t elements = 0;
  for (const Shape& shape : parameters_)
    elements += share.of(shape[0]).count() * shape.with(0, 1).numel();
  return 2 * elements * size_of(accumulation_of(dtype_));
}

MemoryPlan MemoryPlanner::plan() const {
  std::int64_t elements = 0;
  for (const Shape& shape : parameters_) elements += shape.numel();
  const DType full = accumulation_of(dtype_);
  const auto in_full = elements * size_of(full);
  MemoryPlan fullest;
  for (int replica = 0; replica < static_cast<int>(replicas_.size()); ++replica)
    for (const RankMaxima& most : replicas_[static_cast<std::size_t>(replica)]) {
      MemoryPlan plan{{{"parameters", elements * size_of(dtype_)}}};
      if (pass_ == PassKind::kTrain) {
        if (full != dtype_) plan.lines.push_back({"master_weights", in_full});
        plan.lines.push_back({"gradients", in_full});
        plan.lines.push_back({"moments", moment_bytes(replica)});
        plan.lines.push_back({"activations", most.activations});
      }
      plan.lines.push_back({"scratch", most.scratch});
      plan.lines.push_back({"rope_table", most.rope_table});
      if (plan.total() > fullest.total()) fullest = std::move(plan);
    }
  return fullest;
}

}  // namespace coppice
