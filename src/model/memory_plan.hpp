#pragma once
// How many bytes a run needs, by the names of the memory account, known before anything is
// allocated. The model leases by the same figures, so a plan cannot drift from what happens.
#include <cstdint>
#include <string>
#include <vector>

#include "layers/transformer_block.hpp"
#include "model/model_config.hpp"

namespace coppice {

/// The sizes of a micro-batch that decide about memory.
struct BatchSize {
  std::int64_t rows = 0;
  std::int64_t edge_rows = 0;         ///< distinct rows with an edge
  std::int64_t edges = 0;             ///< at least edge_rows
  std::int64_t longest_sequence = 0;  ///< largest position + 1
};

struct MemoryLine {
  std::string name;  ///< as in Memory::by_name()
  std::int64_t bytes;
};

struct MemoryPlan {
  std::vector<MemoryLine> lines;
  std::int64_t total() const;
};

enum class PassKind { kScore, kTrain };

/// What a run holds at its peak when `largest` bounds each of its micro-batches in every size:
/// parameters, gradients and moments (kTrain), activations, scratch, rope_table.
MemoryPlan plan_memory(const ModelConfig& config, DType dtype, PassKind pass, Recompute recompute,
                       const BatchSize& largest, int threads);

// What a pass leases, for the model itself.

/// Rows of one chunk of the head's logits.
std::int64_t head_chunk_rows(const ModelConfig& config, DType dtype, std::int64_t edge_rows);
/// Positions of the rope table: a little room ahead, so that it seldom grows.
std::int64_t rope_positions(const ModelConfig& config, std::int64_t longest_sequence);
std::int64_t activation_bytes(const ModelConfig& config, DType dtype, Recompute recompute,
                              const BatchSize& size, const TransformerBlock& block);
std::int64_t scratch_bytes(const ModelConfig& config, DType dtype, PassKind pass,
                           Recompute recompute, const BatchSize& size,
                           const TransformerBlock& block, int threads);

TransformerBlockConfig block_config(const ModelConfig& config, std::int64_t layer);

}  // namespace coppice
