#pragma once
// The head: from final hidden rows to log-probabilities and entropies, and back from the loss's two
// numbers per edge. It runs on the rows that predict something, in chunks of rows, so a buffer of
// rows x vocabulary never exists. What the loss is, it does not know.
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "attention/prediction_edges.hpp"
#include "core/exec_context.hpp"
#include "core/tensor.hpp"
#include "layers/vocab_shard.hpp"

namespace coppice {

/// The run of the vocabulary whose rows a weight holds, and the ranks that hold the others.
struct VocabRanks {
  Communicator& tensor;
  VocabShard shard;
};

/// The edges by the row that predicts: edges of head row r are [edge_begin[r], edge_begin[r + 1]).
struct HeadEdges {
  std::vector<std::int64_t> rows;        // packed row of each head row, ascending, each once
  std::vector<std::int64_t> edge_begin;  // [rows + 1]
  std::vector<std::int32_t> targets;     // token id of each edge

  HeadEdges() : edge_begin{0} {}
  /// Errors    ContractError if edges are not sorted by row
  explicit HeadEdges(std::span<const PredictionEdge> edges);

  std::int64_t row_count() const { return std::ssize(edge_begin) - 1; }
  std::int64_t edge_count() const { return std::ssize(targets); }
};

/// The loss of the edges from first_edge on: from their statistics to c = dL/dlogprob and
/// e = dL/dentropy. All spans have one entry per edge; c and e come filled with 0.
using EdgeCoefficients = std::function<void(
    std::int64_t first_edge, std::span<const double> logprobs, std::span<const double> entropies,
    std::span<double> c, std::span<double> e)>;

/// With z = x weight^T / temperature: logprob = z_target - LSE(z), entropy = -sum p log p.
///
/// Shapes    x [n, N]: the head rows, gathered and normed   weight [V of this rank, N]
///           logprobs, entropies [edges], in the order of edges.targets
/// Dtypes    x and weight both f32 or both f64; on CUDA bf16, with logits and their statistics in
///           f32 and f64; log-probs and entropies always double
/// Units     natural logarithms
/// Parallel  `vocabulary` (default: the whole of it on one rank) says which tokens weight holds.
///           All tensor-parallel ranks call with the same x, edges and chunk_rows and get the same
///           statistics. Rows of weight behind those tokens are padding: probability and gradient
///           exactly 0, and their memory is not read
/// Memory    logprob_scratch_bytes(); chunk_rows x V logits at a time
/// Errors    ContractError if shapes or dtypes disagree, a target is outside the vocabulary
/// Repeats   bitwise, for the same chunk_rows, thread count and kind of CPU
/// Source    math.md section 3 of the design
/// Oracle    tests/layers/vocab_parallel_logprob_test.cpp, tests/reference/naive_logprob.hpp
void logprob_forward(ExecContext& ctx, ConstTensorView x, ConstTensorView weight,
                     const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                     std::span<double> logprobs, std::span<double> entropies,
                     const std::optional<VocabRanks>& vocabulary = std::nullopt);

/// dz_v = (c (1[v = target] - p_v) - e p_v (log p_v + H)) / temperature, summed over a row's edges;
/// dx = dz weight; dweight += dz^T x. The logits of a chunk are computed again. dx is what this
/// rank's tokens send back: a part of a sum over tensor-parallel ranks.
///
/// Shapes    c, e [edges]   dx like x   dweight like weight
/// Dtypes    dx like x; dweight too, but f32 for bf16
/// Effects   overwrites dx; adds to dweight, where there is one. Of a row whose c and e are all 0
///           it makes exactly 0, whatever its logits are
void logprob_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView weight,
                      const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                      std::span<const double> c, std::span<const double> e, TensorView dx,
                      std::optional<TensorView> dweight,
                      const std::optional<VocabRanks>& vocabulary = std::nullopt);

/// Both at once, for losses whose c and e of an edge need that edge only: each chunk's logits are
/// computed once, `coefficients` is called between, and the logits become their gradient in place.
/// Bit-equal to the two calls.
void logprob_forward_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView weight,
                              const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                              const EdgeCoefficients& coefficients, std::span<double> logprobs,
                              std::span<double> entropies, TensorView dx,
                              std::optional<TensorView> dweight,
                              const std::optional<VocabRanks>& vocabulary = std::nullopt);

/// `vocab_rows`: rows of the weight on a rank, the same on all. Rows per chunk so that a chunk's
/// logits take at most `logit_bytes` (but at least one row), with chunks of nearly equal size.
std::int64_t logprob_chunk_rows(DType dtype, std::int64_t rows, std::int64_t vocab_rows,
                                std::int64_t logit_bytes);

/// What each of the three leases from ctx.scratch at most, on one of `ranks` tensor-parallel ranks
/// that holds `vocab_size` tokens.
std::int64_t logprob_scratch_bytes(DType dtype, const HeadEdges& edges, std::int64_t vocab_size,
                                   std::int64_t chunk_rows, int ranks = 1);

/// The head rows [row_begin, row_begin + rows) with their logits: what a backend works on.
struct LogitChunk {
  TensorView logits;    // [rows, V of this rank], not yet divided by the temperature; f32 for bf16
  TensorView gradient;  // [rows, V of this rank] in x's dtype: the logits themselves, or, where
                        // that is narrower, the first part of each of their rows
  TensorView statistics;  // [rows, 3] f64: largest logit; log of the sum of exp(z - largest z);
                          // mean of (z - largest z) under p
  std::int64_t row_begin;
  std::int64_t first_token;  // of column 0
  double temperature;
};

namespace cpu {
/// Fills chunk.statistics from the chunk's own columns; without any: -inf, -inf, 0.
void logprob_statistics(ExecContext& ctx, const LogitChunk& chunk);
/// target_logits[edge of the chunk]: the logit of its target, 0 where another rank holds it.
void logprob_target_logits(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                           TensorView target_logits);
/// chunk.statistics from those of all ranks, `all` [ranks x rows, 3] in rank order.
void logprob_merge_statistics(ExecContext& ctx, ConstTensorView all, const LogitChunk& chunk);
/// The chunk's part of logprobs and entropies (spans over all edges).
void logprob_finish(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                    ConstTensorView target_logits, std::span<double> logprobs,
                    std::span<double> entropies);
/// chunk.gradient from the logits, which it replaces; c and e are spans over the chunk's edges.
void logprob_gradient(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                      std::span<const double> c, std::span<const double> e);
}  // namespace cpu
namespace cuda {
void logprob_statistics(ExecContext& ctx, const LogitChunk& chunk);
void logprob_target_logits(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                           TensorView target_logits);
void logprob_merge_statistics(ExecContext& ctx, ConstTensorView all, const LogitChunk& chunk);
void logprob_finish(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                    ConstTensorView target_logits, std::span<double> logprobs,
                    std::span<double> entropies);
void logprob_gradient(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                      std::span<const double> c, std::span<const double> e);
}  // namespace cuda

}  // namespace coppice
