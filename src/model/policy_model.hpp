#pragma once
// The model as a whole: embedding, blocks, final norm and head over one micro-batch of packed rows.
// It knows who sees whom only through the batch's plan, and a loss only as two numbers per edge;
// reading configs, packing batches and updating weights are others' work.
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "layers/rms_norm.hpp"
#include "layers/rope.hpp"
#include "layers/transformer_block.hpp"
#include "layers/vocab_parallel_embedding.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "model/model_config.hpp"
#include "model/packed_batch.hpp"

namespace coppice {

/// Seconds of the two halves of a pass; callers add up over micro-batches.
struct PhaseSeconds {
  double forward = 0;
  double backward = 0;
};

struct RankSizes;

/// Shapes    T rows, n head rows (distinct rows with an edge), N hidden_size, V vocab_size; under
///           sequence parallelism T_r and n_r are this tensor-parallel rank's share, else all
/// Dtypes    f32, or f64 in an F64 run; on CUDA bf16, with f32 statistics, gradients and masters;
///           log-probs, entropies and coefficients always double
/// Parallel  all tensor- and context-parallel ranks run every pass together; the context-parallel
///           ranks' gradients are parts of a sum, as are those of data-parallel ranks
/// Memory    activations in their arena, everything else in ctx.scratch, which must be empty when a
///           pass starts; both grow to what the batch needs, as model/memory_plan.hpp predicts
/// Errors    ContractError if a batch does not fit together, an id is outside the vocabulary, or a
///           position is not below max_position_embeddings
/// Repeats   bitwise, for the same thread count and kind of CPU, under every Recompute
/// Oracle    tests/golden (transformers), tests/reference/naive_model.hpp
class PolicyModel {
 public:
  /// Kept from forward to backward of one micro-batch.
  struct Activations {
    explicit Activations(Memory& memory) : arena(memory, "activations") {}

    Arena arena;
    std::vector<Tensor> streams;                        // L + 1 times [T_r, N]: what enters each
                                                        // block, and what leaves the last
    std::vector<TransformerBlock::Activations> blocks;  // L
    HeadEdges edges;                                    //
    std::vector<std::int64_t> head_rows;                // [n_r] places among the T_r rows
    std::vector<std::int64_t> head_rank_rows;           // n_r of each tensor-parallel rank
    Tensor head_input;                                  // [n_r, N]  before the final norm
    Tensor head_normed;                                 // [n, N]
    Tensor head_rstd;                                   // [n_r]
  };

  /// Parameters are allocated and not initialised.
  PolicyModel(ModelConfig config, const ParallelContext& parallel, DType compute, Memory& memory,
              WithGradients gradients);
  // Parameters are known by their addresses.
  PolicyModel(const PolicyModel&) = delete;
  PolicyModel& operator=(const PolicyModel&) = delete;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  /// In a fixed order: embedding, blocks, final norm, head unless tied. Each once.
  std::vector<Parameter*> parameters();
  /// Matrices normal(0, initializer_range), norms 1, biases 0, drawn by Hugging Face name and
  /// element: the same on any grid.
  void initialize(ExecContext& ctx, std::uint64_t seed);
  /// Begins a sum of gradients. Those that a pass sets anyway are only marked as 0; where perhaps
  /// no pass is made, settle_gradients makes it true.
  void zero_gradients(ExecContext& ctx);
  void settle_gradients(ExecContext& ctx);

  /// parameters() in the order in which a pass ends with their gradients: head and final norm,
  /// blocks from the last to the first, embedding (which is the head's where tied).
  std::vector<Parameter*> parameters_by_backward();
  /// Told, during a pass, the next run of parameters_by_backward() whose gradients the pass has
  /// ended with.
  using GradientsDone = std::function<void(std::span<Parameter* const>)>;

  /// Log-probs and entropies of the batch's edges, in their order. Keeps nothing: memory is that of
  /// one layer.
  void score(ExecContext& ctx, const PackedBatch& batch, double temperature,
             std::span<double> logprobs, std::span<double> entropies);

  /// A whole pass for a loss whose coefficients of an edge need that edge only; the head's two
  /// passes are fused. Adds to the gradients; `seconds`, where given, is added to.
  void forward_backward(ExecContext& ctx, const PackedBatch& batch, Recompute recompute,
                        double temperature, const EdgeCoefficients& coefficients,
                        std::span<double> logprobs, std::span<double> entropies,
                        PhaseSeconds* seconds = nullptr, const GradientsDone& done = {});

  /// The same in four steps, for any loss: coefficients come between the two of the head.
  /// Gradients are bit-equal to the fused pass's.
  void forward(ExecContext& ctx, const PackedBatch& batch, Recompute recompute, Activations& acts);
  void head_forward(ExecContext& ctx, const Activations& acts, double temperature,
                    std::span<double> logprobs, std::span<double> entropies) const;
  void head_backward(ExecContext& ctx, Activations& acts, double temperature,
                     std::span<const double> c, std::span<const double> e);
  void backward(ExecContext& ctx, const PackedBatch& batch, Activations& acts,
                const GradientsDone& done = {});

  /// The model's own activations, which forward_backward uses.
  Activations& activations() { return activations_; }

 private:
  ConstTensorView head_weight() const;
  std::optional<TensorView> head_grad();
  VocabRanks vocabulary() const;
  RankSizes sizes(const PackedBatch& batch, const Activations& acts) const;
  std::vector<Parameter*> head_parameters();
  void tell(ExecContext& ctx, const GradientsDone& done, std::span<Parameter* const> parameters);
  void note(const char* phase, std::int64_t layer = -1) const;
  std::int64_t chunk_rows(const HeadEdges& edges) const;
  void prepare(const PackedBatch& batch, Activations& acts);
  PackedRows rows_of_pass(const PackedBatch& batch) const;
  void norm_head(ExecContext& ctx, const Activations& acts, ConstTensorView input,
                 TensorView normed, TensorView rstd) const;
  void final_norm_backward(ExecContext& ctx, Activations& acts, TensorView d_normed);

  ModelConfig config_;
  DType dtype_;
  Memory& memory_;
  ParallelContext parallel_;
  VocabShard vocab_;
  VocabParallelEmbedding embedding_;
  std::vector<TransformerBlock> blocks_;
  RmsNorm final_norm_;
  std::optional<Parameter> lm_head_;  // [V of this rank, N]; absent when tied to the embedding
  std::optional<RopeTable> rope_;     // grows to the longest position met
  Activations activations_;
};

}  // namespace coppice
