// The head's chunks: one loop for statistics, one for gradients, one for both, all from the same
// three steps. Only the steps on a chunk's logits differ between devices.
#include "layers/vocab_parallel_logprob.hpp"

#include <algorithm>

#include "core/build_config.hpp"
#include "core/gemm.hpp"

namespace coppice {
namespace {

struct Head {
  ExecContext& ctx;
  ConstTensorView x, weight;
  const HeadEdges& edges;
  double temperature;
  std::int64_t chunk_rows;
  const std::optional<VocabRanks>& vocabulary;

  std::int64_t rows() const { return edges.row_count(); }
  std::int64_t rows_from(std::int64_t begin) const { return std::min(chunk_rows, rows() - begin); }
  std::int64_t first_edge(std::int64_t row) const {
    return edges.edge_begin[static_cast<std::size_t>(row)];
  }
  std::int64_t edges_of(std::int64_t begin, std::int64_t count) const {
    return first_edge(begin + count) - first_edge(begin);
  }
};

/// The part of a span over all edges that belongs to a chunk.
template <class T>
std::span<T> of_chunk(const Head& head, std::span<T> all, std::int64_t begin, std::int64_t count) {
  return all.subspan(static_cast<std::size_t>(head.first_edge(begin)),
                     static_cast<std::size_t>(head.edges_of(begin, count)));
}

Head checked(ExecContext& ctx, ConstTensorView x, ConstTensorView weight, const HeadEdges& edges,
             double temperature, std::int64_t chunk_rows,
             const std::optional<VocabRanks>& vocabulary) {
  const auto weight_rows = weight.shape()[0];
  const auto tokens = vocabulary ? vocabulary->shard.size : weight_rows;
  const auto vocab_size = vocabulary ? vocabulary->shard.vocab_size : weight_rows;
  COPPICE_CHECK(x.shape().rank() == 2 && weight.shape().rank() == 2 &&
                    x.shape()[1] == weight.shape()[1] && x.dtype() == weight.dtype(),
                "logprob: x {} {} for weight {} {}", name_of(x.dtype()), x.shape(),
                name_of(weight.dtype()), weight.shape());
  COPPICE_CHECK(x.shape()[0] == edges.row_count() && edges.edge_begin.front() == 0 &&
                    edges.edge_begin.back() == edges.edge_count(),
                "logprob: x {} for {} head rows with {} edges", x.shape(), edges.row_count(),
                edges.edge_count());
  COPPICE_CHECK(vocab_size > 0 && tokens <= weight_rows, "logprob: {} of {} tokens in weight {}",
                tokens, vocab_size, weight.shape());
  COPPICE_CHECK(temperature > 0, "logprob: temperature = {}", temperature);
  COPPICE_CHECK(chunk_rows > 0, "logprob: chunk_rows = {}", chunk_rows);
  for (const auto target : edges.targets) {
    COPPICE_CHECK(target >= 0 && target < vocab_size, "logprob: target {} of a vocabulary of {}",
                  target, vocab_size);
  }
  return {ctx, x, weight.rows(0, tokens), edges, temperature, chunk_rows, vocabulary};
}

void check_sizes(const Head& head, std::size_t first, std::size_t second) {
  const auto count = static_cast<std::size_t>(head.edges.edge_count());
  COPPICE_CHECK(first == count && second == count, "logprob: spans of {} and {} for {} edges",
                first, second, count);
}

void check_gradients(const Head& head, TensorView dx, std::optional<TensorView>& dweight) {
  const DType sums = accumulation_of(head.x.dtype());
  COPPICE_CHECK(dx.shape() == head.x.shape() && dx.device() == head.x.device() &&
                    (dx.dtype() == head.x.dtype() || dx.dtype() == sums),
                "logprob: dx {} {} for x {} {}", name_of(dx.dtype()), dx.shape(),
                name_of(head.x.dtype()), head.x.shape());
  if (!dweight) return;
  COPPICE_CHECK(dweight->shape().rank() == 2 &&
                    dweight->dtype() == accumulation_of(head.weight.dtype()) &&
                    dweight->shape()[1] == head.weight.shape()[1] &&
                    dweight->shape()[0] >= head.weight.shape()[0],
                "logprob: dweight {} for weight {}", dweight->shape(), head.weight.shape());
  dweight = dweight->rows(0, head.weight.shape()[0]);
}

/// Elements from a row of logits to the next. Products of bf16 want rows that start at multiples of
/// 16 bytes, whatever the vocabulary.
std::int64_t logit_stride(DType dtype, std::int64_t vocabulary) {
  return dtype == DType::kBF16 ? (vocabulary + 7) / 8 * 8 : vocabulary;
}

/// A matrix of narrower elements at the start of each of `wide`'s rows.
TensorView narrowed(TensorView wide, DType dtype) {
  if (wide.dtype() == dtype) return wide;
  const auto ratio = size_of(wide.dtype()) / size_of(dtype);
  return {wide.bytes(), dtype, wide.shape(), Shape({wide.strides()[0] * ratio, 1}), wide.device()};
}

LogitChunk logits_of(const Head& head, ScratchScope& scratch, std::int64_t begin) {
  const auto rows = head.rows_from(begin), vocabulary = head.weight.shape()[0];
  const DType dtype = head.x.dtype();
  const TensorView logits =
      scratch.lease(accumulation_of(dtype), {rows, logit_stride(dtype, vocabulary)})
          .columns(0, vocabulary);
  LogitChunk chunk{.logits = logits,
                   .gradient = narrowed(logits, dtype),
                   .statistics = scratch.lease(DType::kF64, {rows, 3}),
                   .row_begin = begin,
                   .first_token = head.vocabulary ? head.vocabulary->shard.begin : 0,
                   .temperature = head.temperature};
  gemm(head.ctx, head.x.rows(begin, rows), head.weight, chunk.logits, {.b = Transpose::kYes});
  return chunk;
}

// The four steps of a device's backend; the collectives between them are in statistics().
struct Backend {
  decltype(&cpu::logprob_statistics) statistics;
  decltype(&cpu::logprob_target_logits) target_logits;
  decltype(&cpu::logprob_merge_statistics) merge_statistics;
  decltype(&cpu::logprob_finish) finish;
};

Backend backend_of(const ExecContext& ctx) {
  switch (ctx.device().kind) {
    case DeviceKind::kCpu:
      return {cpu::logprob_statistics, cpu::logprob_target_logits, cpu::logprob_merge_statistics,
              cpu::logprob_finish};
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return {cuda::logprob_statistics, cuda::logprob_target_logits,
                cuda::logprob_merge_statistics, cuda::logprob_finish};
      }
      break;
  }
  throw_no_backend("logprob_statistics", ctx.device());
}

/// A chunk's statistics over the whole vocabulary and, where spans are given, its edges' figures.
void statistics(const Head& head, const LogitChunk& chunk, std::span<double> logprobs,
                std::span<double> entropies) {
  const Backend backend = backend_of(head.ctx);
  const auto rows = chunk.logits.shape()[0];
  Communicator* tensor =
      head.vocabulary && head.vocabulary->tensor.size() > 1 ? &head.vocabulary->tensor : nullptr;
  ScratchScope scratch(head.ctx.scratch);
  {
    const TraceScope scope(head.ctx.trace, "logprob_statistics", {.rows = rows});
    backend.statistics(head.ctx, chunk);
  }
  if (tensor != nullptr) {
    const TensorView all = scratch.lease(DType::kF64, {tensor->size() * rows, 3});
    tensor->all_gather(head.ctx.stream, chunk.statistics, all);
    backend.merge_statistics(head.ctx, all, chunk);
  }
  if (logprobs.empty()) return;
  const TensorView targets = scratch.lease(DType::kF64, {head.edges_of(chunk.row_begin, rows)});
  backend.target_logits(head.ctx, head.edges, chunk, targets);
  if (tensor != nullptr) tensor->all_reduce(head.ctx.stream, targets, ReduceOp::kSum);
  backend.finish(head.ctx, head.edges, chunk, targets, logprobs, entropies);
}

void gradient(const Head& head, const LogitChunk& chunk, std::span<const double> c,
              std::span<const double> e) {
  const TraceScope scope(head.ctx.trace, "logprob_gradient", {.rows = chunk.logits.shape()[0]});
  switch (head.ctx.device().kind) {
    case DeviceKind::kCpu:
      return cpu::logprob_gradient(head.ctx, head.edges, chunk, c, e);
    case DeviceKind::kCuda:
      if constexpr (build::kWithCuda) {
        return cuda::logprob_gradient(head.ctx, head.edges, chunk, c, e);
      }
      break;
  }
  throw_no_backend("logprob_gradient", head.ctx.device());
}

/// From a chunk's statistics and coefficients to dx and dweight.
void backward_chunk(const Head& head, const LogitChunk& chunk, std::span<const double> c,
                    std::span<const double> e, TensorView dx,
                    const std::optional<TensorView>& dweight) {
  const auto rows = chunk.logits.shape()[0];
  gradient(head, chunk, c, e);
  gemm(head.ctx, chunk.gradient, head.weight, dx.rows(chunk.row_begin, rows));
  if (dweight) {
    gemm(head.ctx, chunk.gradient, head.x.rows(chunk.row_begin, rows), *dweight,
         {.a = Transpose::kYes, .beta = 1.0});
  }
}

std::int64_t most_edges(const HeadEdges& edges, std::int64_t chunk_rows) {
  std::int64_t most = 0;
  for (std::int64_t begin = 0; begin < edges.row_count(); begin += chunk_rows) {
    const auto end = std::min(begin + chunk_rows, edges.row_count());
    most = std::max(most, edges.edge_begin[static_cast<std::size_t>(end)] -
                              edges.edge_begin[static_cast<std::size_t>(begin)]);
  }
  return most;
}

}  // namespace

HeadEdges::HeadEdges(std::span<const PredictionEdge> edges) {
  for (const auto& edge : edges) {
    COPPICE_CHECK(rows.empty() || rows.back() <= edge.row, "an edge of row {} after row {}",
                  edge.row, rows.back());
    if (rows.empty() || rows.back() != edge.row) {
      rows.push_back(edge.row);
      edge_begin.push_back(std::ssize(targets));
    }
    targets.push_back(edge.target);
  }
  edge_begin.push_back(std::ssize(targets));
}

void logprob_forward(ExecContext& ctx, ConstTensorView x, ConstTensorView weight,
                     const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                     std::span<double> logprobs, std::span<double> entropies,
                     const std::optional<VocabRanks>& vocabulary) {
  const Head head = checked(ctx, x, weight, edges, temperature, chunk_rows, vocabulary);
  check_sizes(head, logprobs.size(), entropies.size());
  const TraceScope scope(ctx.trace, TraceKind::kModule, "head_forward", {.rows = head.rows()});
  for (std::int64_t begin = 0; begin < head.rows(); begin += chunk_rows) {
    ScratchScope scratch(ctx.scratch);
    const LogitChunk chunk = logits_of(head, scratch, begin);
    statistics(head, chunk, logprobs, entropies);
  }
}

void logprob_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView weight,
                      const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                      std::span<const double> c, std::span<const double> e, TensorView dx,
                      std::optional<TensorView> dweight,
                      const std::optional<VocabRanks>& vocabulary) {
  const Head head = checked(ctx, x, weight, edges, temperature, chunk_rows, vocabulary);
  check_sizes(head, c.size(), e.size());
  check_gradients(head, dx, dweight);
  const TraceScope scope(ctx.trace, TraceKind::kModule, "head_backward", {.rows = head.rows()});
  for (std::int64_t begin = 0; begin < head.rows(); begin += chunk_rows) {
    ScratchScope scratch(ctx.scratch);
    const LogitChunk chunk = logits_of(head, scratch, begin);
    statistics(head, chunk, {}, {});
    const auto rows = head.rows_from(begin);
    backward_chunk(head, chunk, of_chunk(head, c, begin, rows), of_chunk(head, e, begin, rows), dx,
                   dweight);
  }
}

void logprob_forward_backward(ExecContext& ctx, ConstTensorView x, ConstTensorView weight,
                              const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                              const EdgeCoefficients& coefficients, std::span<double> logprobs,
                              std::span<double> entropies, TensorView dx,
                              std::optional<TensorView> dweight,
                              const std::optional<VocabRanks>& vocabulary) {
  const Head head = checked(ctx, x, weight, edges, temperature, chunk_rows, vocabulary);
  check_sizes(head, logprobs.size(), entropies.size());
  check_gradients(head, dx, dweight);
  const TraceScope scope(ctx.trace, TraceKind::kModule, "head_forward_backward",
                         {.rows = head.rows()});
  const auto most = static_cast<std::size_t>(most_edges(edges, chunk_rows));
  std::vector<double> chunk_c(most), chunk_e(most);
  for (std::int64_t begin = 0; begin < head.rows(); begin += chunk_rows) {
    ScratchScope scratch(ctx.scratch);
    const LogitChunk chunk = logits_of(head, scratch, begin);
    statistics(head, chunk, logprobs, entropies);
    const auto rows = head.rows_from(begin);
    const auto edge_count = static_cast<std::size_t>(head.edges_of(begin, rows));
    const auto c = std::span(chunk_c).first(edge_count), e = std::span(chunk_e).first(edge_count);
    std::fill(c.begin(), c.end(), 0.0);
    std::fill(e.begin(), e.end(), 0.0);
    coefficients(head.first_edge(begin), of_chunk(head, logprobs, begin, rows),
                 of_chunk(head, entropies, begin, rows), c, e);
    backward_chunk(head, chunk, c, e, dx, dweight);
  }
}

std::int64_t logprob_chunk_rows(DType dtype, std::int64_t rows, std::int64_t vocab_rows,
                                std::int64_t logit_bytes) {
  const auto most =
      std::max<std::int64_t>(1, logit_bytes / (vocab_rows * size_of(accumulation_of(dtype))));
  const auto chunks = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return std::max<std::int64_t>(1, (rows + chunks - 1) / chunks);
}

std::int64_t logprob_scratch_bytes(DType dtype, const HeadEdges& edges, std::int64_t vocab_size,
                                   std::int64_t chunk_rows, int ranks) {
  const auto rows = std::min(chunk_rows, edges.row_count());
  if (rows == 0) return 0;
  const auto chunk_edges = most_edges(edges, chunk_rows);
  auto merging = Arena::leased_bytes(DType::kF64, {chunk_edges});
  if (ranks > 1) merging += Arena::leased_bytes(DType::kF64, {ranks * rows, 3});
  // What a CUDA device is sent of the rows and edges.
  if (dtype == DType::kBF16)
    merging += Arena::leased_bytes(DType::kI64, {4 * rows + chunk_edges + 8});
  return Arena::leased_bytes(accumulation_of(dtype), {rows, logit_stride(dtype, vocab_size)}) +
         Arena::leased_bytes(DType::kF64, {rows, 3}) + merging;
}

}  // namespace coppice
