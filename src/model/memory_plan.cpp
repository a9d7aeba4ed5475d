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

// Scratch depends on how many rows there are, not on who sees whom.
AttentionPlan plan_of_rows(std::int64_t rows) {
  const SegmentSpec whole{rows, -1};
  return AttentionPlan(PrefixForest({&whole, 1}));
}

// Head rows with the given numbers of rows and edges; the edges beyond one a row sit on the first,
// as those of a prefix do.
HeadEdges edges_of(const BatchSize& size) {
  HeadEdges edges;
  edges.edge_begin.clear();
  for (std::int64_t row = 0; row <= size.edge_rows; ++row) {
    edges.edge_begin.push_back(row == 0 ? 0 : row + size.edges - size.edge_rows);
  }
  edges.targets.resize(static_cast<std::size_t>(edges.edge_begin.back()));
  return edges;
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

std::int64_t head_chunk_rows(const ModelConfig& config, DType dtype, std::int64_t edge_rows) {
  return logprob_chunk_rows(dtype, edge_rows, config.vocab_size, kLogitBytes);
}

std::int64_t rope_positions(const ModelConfig& config, std::int64_t longest_sequence) {
  const auto rounded = (longest_sequence + kRopeRoom - 1) / kRopeRoom * kRopeRoom;
  return std::min(rounded, config.max_position_embeddings);
}

std::int64_t activation_bytes(const ModelConfig& config, DType dtype, Recompute recompute,
                              const BatchSize& size, const TransformerBlock& block) {
  const auto layers = config.num_hidden_layers;
  return (layers + 1) * Arena::leased_bytes(dtype, {size.rows, config.hidden_size}) +
         layers * block.activation_bytes(size.rows, recompute) +
         2 * Arena::leased_bytes(dtype, {size.edge_rows, config.hidden_size}) +
         Arena::leased_bytes(dtype, {size.edge_rows});
}

std::int64_t scratch_bytes(const ModelConfig& config, DType dtype, PassKind pass,
                           Recompute recompute, const BatchSize& size,
                           const TransformerBlock& block, int threads) {
  const AttentionPlan plan = plan_of_rows(size.rows);
  const auto head_rows = Arena::leased_bytes(dtype, {size.edge_rows, config.hidden_size});
  const auto logits = logprob_scratch_bytes(dtype, edges_of(size), config.vocab_size,
                                            head_chunk_rows(config, dtype, size.edge_rows));
  if (pass == PassKind::kScore) {
    const auto head = head_rows + Arena::leased_bytes(dtype, {size.edge_rows}) + logits;
    return 2 * Arena::leased_bytes(dtype, {size.rows, config.hidden_size}) +
           std::max(block.forward_scratch_bytes(plan, Recompute::kBlock, threads), head);
  }
  const auto head = head_rows + std::max(logits, rms_norm_scratch_bytes(dtype, size.edge_rows,
                                                                        config.hidden_size));
  return std::max({block.forward_scratch_bytes(plan, recompute, threads), head,
                   block.backward_scratch_bytes(plan, recompute, threads)});
}

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const auto& line : lines) sum += line.bytes;
  return sum;
}

MemoryPlan plan_memory(const ModelConfig& config, DType dtype, PassKind pass, Recompute recompute,
                       const BatchSize& largest, int threads) {
  // One block, never touched, knows what all blocks lease; its own bytes end with this call.
  Memory memory{Device{}};
  const auto self = make_self_communicator();
  const ParallelContext parallel{*self, *self, *self};
  const TransformerBlock block(parallel, {memory, dtype, WithGradients::kNo},
                               block_config(config, 0));
  const auto parameters = parameter_count(config) * size_of(dtype);
  MemoryPlan plan;
  plan.lines.push_back({"parameters", parameters});
  if (pass == PassKind::kTrain) {
    plan.lines.push_back({"gradients", parameters});
    plan.lines.push_back({"moments", 2 * parameters});
    plan.lines.push_back(
        {"activations", activation_bytes(config, dtype, recompute, largest, block)});
  }
  plan.lines.push_back(
      {"scratch", scratch_bytes(config, dtype, pass, recompute, largest, block, threads)});
  plan.lines.push_back(
      {"rope_table",
       RopeTable::bytes(dtype, config.head_dim, rope_positions(config, largest.longest_sequence))});
  return plan;
}

}  // namespace coppice
