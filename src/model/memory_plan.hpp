#pragma once
// How many bytes a run needs, by the names of the memory account, known before anything is
// allocated. The model leases by the same figures, so a plan cannot drift from what happens.
#include <cstdint>
#include <string>
#include <vector>

#include "layers/transformer_block.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "model/model_config.hpp"
#include "model/packed_batch.hpp"

namespace coppice {

struct MemoryLine {
  std::string name;  ///< as in Memory::by_name()
  std::int64_t bytes;
};

struct MemoryPlan {
  std::vector<MemoryLine> lines;
  std::int64_t total() const;
};

enum class PassKind { kScore, kTrain };

/// What a run holds at its peak: parameters, gradients and moments (kTrain), activations (kTrain),
/// scratch, rope_table. Each line is the largest over the micro-batches it was shown.
///
/// Memory    allocates one block of the model on a Memory of its own and never touches it
class MemoryPlanner {
 public:
  MemoryPlanner(ModelConfig config, DType dtype, PassKind pass, Recompute recompute, int threads);

  void add(const PackedBatch& batch);
  MemoryPlan plan() const;

 private:
  ModelConfig config_;
  DType dtype_;
  PassKind pass_;
  Recompute recompute_;
  int threads_;
  Memory memory_{Device{}};
  TransformerBlock block_;  // knows what each of the blocks leases
  std::int64_t activations_ = 0, scratch_ = 0, rope_table_ = 0;
};

// What one pass over one micro-batch takes; the model leases and allocates by these.

std::int64_t activation_bytes(const ModelConfig& config, DType dtype, Recompute recompute,
                              const TransformerBlock& block, const PackedBatch& batch,
                              const HeadEdges& edges);
std::int64_t scratch_bytes(const ModelConfig& config, DType dtype, PassKind pass,
                           Recompute recompute, int threads, const TransformerBlock& block,
                           const PackedBatch& batch, const HeadEdges& edges);
/// Rows of one chunk of the head's logits.
std::int64_t head_chunk_rows(const ModelConfig& config, DType dtype, std::int64_t edge_rows);
/// Positions of the rope table: a little room ahead, so that it seldom grows.
std::int64_t rope_positions(const ModelConfig& config, std::int64_t longest_sequence);
/// Tokens of the longest sequence: the largest position + 1.
std::int64_t longest_sequence(const PackedBatch& batch);

TransformerBlockConfig block_config(const ModelConfig& config, std::int64_t layer);

}  // namespace coppice
