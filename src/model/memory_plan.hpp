#pragma once
// How many bytes a run needs, by the names of the memory account, known before anything is
// allocated. The model leases by the same figures, so a plan cannot drift from what happens.
#include <cstdint>
#include <memory>
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

/// The place of a rank in a grid that need not be there.
struct PlannedRank {
  int tensor_size = 1;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  int moment_shards = 1;  ///< replicas that the optimizer state is sharded over
};

/// What the fullest rank of a run holds at its peak: parameters, master_weights (kTrain in bf16),
/// gradients and moments (kTrain), activations (kTrain), scratch, rope_table. Arenas never shrink,
/// so each line is the largest over the micro-batches of a rank; the ranks are kept apart, because
/// one that holds the most activations may not be one that holds the most moments.
///
/// Memory    allocates one block of the model on a Memory of its own and never touches it
class MemoryPlanner {
 public:
  MemoryPlanner(ModelConfig config, DType dtype, PassKind pass, Recompute recompute, int threads,
                const PlannedRank& rank = {});

  /// A micro-batch of a replica: the tensor-parallel ranks of a data and context rank.
  void add(const PackedBatch& batch, int replica = 0) { add(batch, pass_, replica); }
  /// One that a run which trains only scores: the pass for old log-probs.
  void add_scoring(const PackedBatch& batch, int replica = 0) {
    add(batch, PassKind::kScore, replica);
  }
  /// Of the rank whose lines sum up to the most.
  MemoryPlan plan() const;

 private:
  /// The largest of each over a rank's micro-batches.
  struct RankMaxima {
    std::int64_t activations = 0, scratch = 0, rope_table = 0;
  };
  void add(const PackedBatch& batch, PassKind pass, int replica);
  std::int64_t moment_bytes(int replica) const;

  ModelConfig config_;
  DType dtype_;
  PassKind pass_;
  Recompute recompute_;
  int threads_;
  PlannedRank rank_;
  std::unique_ptr<Communicator> tensor_, self_;
  ParallelContext parallel_;
  std::vector<VocabShard> vocab_;  // of each tensor-parallel rank
  Memory memory_{Device{}};
  TransformerBlock block_;                         // knows what each of the blocks leases
  std::vector<Shape> parameters_;                  // on this rank
  std::vector<std::vector<RankMaxima>> replicas_;  // by replica and tensor-parallel rank
};

// What one pass over one micro-batch takes; the model leases and allocates by these.

struct RankSizes {
  const ModelConfig& config;
  DType dtype;
  const ParallelContext& parallel;
  const VocabShard& vocab;
  const TransformerBlock& block;
  const PackedBatch& batch;
  const HeadEdges& edges;
  std::int64_t head_rows;  // of this tensor-parallel rank
};

std::int64_t activation_bytes(const RankSizes& sizes, Recompute recompute);
std::int64_t scratch_bytes(const RankSizes& sizes, PassKind pass, Recompute recompute, int threads);
/// Head rows that each tensor-parallel rank norms: its own under sequence parallelism, else all.
std::vector<std::int64_t> head_rows_of_ranks(const ParallelContext& parallel, std::int64_t rows,
                                             const HeadEdges& edges);
/// Rows of one chunk of the head's logits.
std::int64_t head_chunk_rows(DType dtype, const VocabShard& vocab, std::int64_t edge_rows);
/// Positions of the rope table: a little room ahead, so that it seldom grows.
std::int64_t rope_positions(const ModelConfig& config, std::int64_t longest_sequence);
/// Tokens of the longest sequence: the largest position + 1.
std::int64_t longest_sequence(const PackedBatch& batch);

TransformerBlockConfig block_config(const ModelConfig& config, std::int64_t layer);

}  // namespace coppice
