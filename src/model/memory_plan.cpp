#include "model/memory_plan.hpp"

#include <algorithm>

#include "layers/rms_norm.hpp"
#include "layers/rope.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "model/flops.hpp"

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

std::int64_t head_chunk_rows(const ModelConfig& config, DType dtype, std::int64_t edge_rows) {
  return logprob_chunk_rows(dtype, edge_rows, config.vocab_size, kLogitBytes);
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

std::int64_t activation_bytes(const ModelConfig& config, DType dtype, Recompute recompute,
                              const TransformerBlock& block, const PackedBatch& batch,
                              const HeadEdges& edges) {
  const auto layers = config.num_hidden_layers;
  return (layers + 1) * Arena::leased_bytes(dtype, {batch.rows(), config.hidden_size}) +
         layers * block.activation_bytes(batch.rows(), recompute) +
         2 * Arena::leased_bytes(dtype, {edges.row_count(), config.hidden_size}) +
         Arena::leased_bytes(dtype, {edges.row_count()});
}

std::int64_t scratch_bytes(const ModelConfig& config, DType dtype, PassKind pass,
                           Recompute recompute, int threads, const TransformerBlock& block,
                           const PackedBatch& batch, const HeadEdges& edges) {
  const auto head_rows = Arena::leased_bytes(dtype, {edges.row_count(), config.hidden_size});
  const auto logits = logprob_scratch_bytes(dtype, edges, config.vocab_size,
                                            head_chunk_rows(config, dtype, edges.row_count()));
  if (pass == PassKind::kScore) {
    const auto head = head_rows + Arena::leased_bytes(dtype, {edges.row_count()}) + logits;
    return 2 * Arena::leased_bytes(dtype, {batch.rows(), config.hidden_size}) +
           std::max(block.forward_scratch_bytes(batch.plan, Recompute::kBlock, threads), head);
  }
  const auto head = head_rows + std::max(logits, rms_norm_scratch_bytes(dtype, edges.row_count(),
                                                                        config.hidden_size));
  return std::max({block.forward_scratch_bytes(batch.plan, recompute, threads), head,
                   block.backward_scratch_bytes(batch.plan, recompute, threads)});
}

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const auto& line : lines) sum += line.bytes;
  return sum;
}

MemoryPlanner::MemoryPlanner(ModelConfig config, DType dtype, PassKind pass, Recompute recompute,
                             int threads)
    : config_(std::move(config)),
      dtype_(dtype),
      pass_(pass),
      recompute_(recompute),
      threads_(threads),
      block_([&] {
        const auto self = make_self_communicator();
        return TransformerBlock({*self, *self, *self}, {memory_, dtype, WithGradients::kNo},
                                block_config(config_, 0));
      }()) {}

void MemoryPlanner::add(const PackedBatch& batch) {
  const HeadEdges edges(batch.edges);
  activations_ =
      std::max(activations_, activation_bytes(config_, dtype_, recompute_, block_, batch, edges));
  scratch_ = std::max(
      scratch_, scratch_bytes(config_, dtype_, pass_, recompute_, threads_, block_, batch, edges));
  rope_table_ = std::max(
      rope_table_,
      RopeTable::bytes(dtype_, config_.head_dim, rope_positions(config_, longest_sequence(batch))));
}

MemoryPlan MemoryPlanner::plan() const {
  const auto parameters = parameter_count(config_) * size_of(dtype_);
  MemoryPlan plan;
  plan.lines.push_back({"parameters", parameters});
  if (pass_ == PassKind::kTrain) {
    plan.lines.push_back({"gradients", parameters});
    plan.lines.push_back({"moments", 2 * parameters});
    plan.lines.push_back({"activations", activations_});
  }
  plan.lines.push_back({"scratch", scratch_});
  plan.lines.push_back({"rope_table", rope_table_});
  return plan;
}

}  // namespace coppice
