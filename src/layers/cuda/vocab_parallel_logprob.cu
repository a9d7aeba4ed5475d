// The head's work on a chunk of logits on a CUDA device: a block takes a row. Sums over the
// vocabulary are f32 only within a thread's few neighbouring columns and double between them. What
// is one number per edge is finished on the host, which wants it anyway.
#include "layers/vocab_parallel_logprob.hpp"

#include <cfloat>
#include <limits>

#include "core/cuda/rows.cuh"
#include "core/cuda/runtime.hpp"
#include "core/cuda/upload.hpp"
#include "device/block.cuh"
#include "device/launch.cuh"
#include "device/math.cuh"

namespace coppice::cuda {
namespace {

using device::launch;

constexpr float kLog2E = 1.44269504f;
constexpr int kWarps = kMostThreads / device::kWarpSize;

/// A row's entries of LogitChunk::statistics.
struct RowStatistics {
  double largest, log_sum, mean;
};

/// d held where exp(d) is 0 but products with d are too; NaN stays NaN.
__device__ __forceinline__ float held(float d) { return d < -100.0f ? -100.0f : d; }
__device__ __forceinline__ float exponential(float d) { return device::fast_exp2(kLog2E * d); }

/// Columns [i, i + kCount) of a row, with -inf behind its end.
template <int kCount>
__device__ __forceinline__ Floats<kCount> load_columns(const float* z, std::int64_t i,
                                                       std::int64_t width) {
  if (i + kCount <= width) return load_floats<kCount>(z + i);
  Floats<kCount> floats;
#pragma unroll
  for (int k = 0; k < kCount; ++k) floats[k] = i + k < width ? z[i + k] : -INFINITY;
  return floats;
}

/// sum of exp(d) and of exp(d) d, d = (z - largest) / temperature, of the columns seen so far.
struct Sums {
  float largest = -FLT_MAX;
  double sum = 0, moment = 0;

  __device__ __forceinline__ void raise_to(float most, float inverse_temperature) {
    const float shift = held((largest - most) * inverse_temperature);
    const double weight = exponential(shift);
    moment = weight * (moment + sum * static_cast<double>(shift));
    sum *= weight;
    largest = most;
  }
};

template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    statistics_kernel(Rows<const float> logits, std::int64_t width, float inverse_temperature,
                      RowStatistics* statistics) {
  double* shared = reinterpret_cast<double*>(device::shared_memory());  // [kWarps]
  const float* z = logits.at(blockIdx.x);
  Sums sums;
  for_columns<kCount>(width, [&](std::int64_t i) {
    const auto values = load_columns<kCount>(z, i, width);
    float most = values[0];
#pragma unroll
    for (int k = 1; k < kCount; ++k) most = fmaxf(most, values[k]);
    if (most > sums.largest) sums.raise_to(most, inverse_temperature);
    float sum = 0, moment = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float d = held((values[k] - sums.largest) * inverse_temperature);
      const float p = exponential(d);
      sum += p;
      moment += p * d;
    }
    sums.sum += static_cast<double>(sum);
    sums.moment += static_cast<double>(moment);
  });
  const float largest = device::block_max(sums.largest, reinterpret_cast<float*>(shared));
  sums.raise_to(largest, inverse_temperature);
  const double sum = device::block_sum(sums.sum, shared);
  const double moment = device::block_sum(sums.moment, shared);
  if (threadIdx.x != 0) return;
  statistics[blockIdx.x] =
      width == 0 ? RowStatistics{-INFINITY, -INFINITY, 0}
                 : RowStatistics{static_cast<double>(largest), log(sum), moment / sum};
}

/// Where an edge's target is: column -1 where another rank holds it.
struct Target {
  std::int32_t row, column;
};

__global__ void __launch_bounds__(kMostThreads)
    target_logits_kernel(Rows<const float> logits, const Target* targets, std::int64_t count,
                         double* target_logits) {
  const auto i = std::int64_t{blockIdx.x} * kMostThreads + threadIdx.x;
  if (i >= count) return;
  const Target target = targets[i];
  target_logits[i] = target.column < 0 ? 0.0 : logits.at(target.row)[target.column];
}

// As cpu::logprob_merge_statistics does it.
__global__ void __launch_bounds__(kMostThreads)
    merge_kernel(const RowStatistics* of_ranks, std::int64_t ranks, std::int64_t rows,
                 double inverse_temperature, RowStatistics* statistics) {
  const auto r = std::int64_t{blockIdx.x} * kMostThreads + threadIdx.x;
  if (r >= rows) return;
  double largest = of_ranks[r].largest;
  for (std::int64_t rank = 1; rank < ranks; ++rank) {
    const double other = of_ranks[rank * rows + r].largest;
    // NaN stays: a row that is no number shows it.
    largest = largest < other || other != other ? other : largest;
  }
  double sum = 0, moment = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const RowStatistics part = of_ranks[rank * rows + r];
    const double shift = (part.largest - largest) * inverse_temperature;
    const double weight = exp(part.log_sum + shift);
    if (weight == 0) continue;  // nothing there: its mean has no meaning
    sum += weight;
    moment += weight * (part.mean + shift);
  }
  statistics[r] = {largest, log(sum), moment / sum};
}

/// What the gradient of a row needs of its edges, which are edges[edge_begin .. edge_end).
struct RowCoefficients {
  double c_sum, e_sum;
  std::int32_t edge_begin, edge_end;
  std::int32_t learns, unused;
};

/// c / temperature of an edge whose target is a column of this rank.
struct EdgeCoefficient {
  std::int32_t column;
  float c;
};

// The gradient lies over the logits it is made from: that of columns [i, j) over the logits of
// columns [i / 2, j / 2). All threads have read their part of a run of columns, the barrier says,
// before any writes; what the next run reads lies behind what this one writes.
template <int kCount>
__global__ void __launch_bounds__(kMostThreads)
    gradient_kernel(Rows<const float> logits, std::int64_t width, float inverse_temperature,
                    const RowStatistics* statistics, const RowCoefficients* coefficients,
                    const EdgeCoefficient* edges, Rows<BF16> gradient) {
  const float* z = logits.at(blockIdx.x);
  BF16* dz = gradient.at(blockIdx.x);
  const RowCoefficients row = coefficients[blockIdx.x];
  const RowStatistics row_statistics = statistics[blockIdx.x];
  // p = exp(d) / sum and log p + H = d - mean.
  const double scale = -static_cast<double>(inverse_temperature) * exp(-row_statistics.log_sum);
  const auto logprob_scale = static_cast<float>(scale * row.c_sum);
  const auto entropy_scale = static_cast<float>(scale * row.e_sum);
  const auto largest = static_cast<float>(row_statistics.largest);
  const auto mean = static_cast<float>(row_statistics.mean);
  for (std::int64_t run = 0; run < width; run += std::int64_t{blockDim.x} * kCount) {
    const auto i = run + std::int64_t{threadIdx.x} * kCount;
    Floats<kCount> values{};
    if (i < width && row.learns != 0) {
      values = load_columns<kCount>(z, i, width);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float d = held((values[k] - largest) * inverse_temperature);
        values[k] = exponential(d) * (logprob_scale + entropy_scale * (d - mean));
      }
      for (std::int32_t at = row.edge_begin; at < row.edge_end; ++at) {
        const EdgeCoefficient edge = edges[at];
        if (edge.column < i || edge.column >= i + kCount) continue;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          if (edge.column == i + k) values[k] += edge.c;
        }
      }
    }
    __syncthreads();
    if (i + kCount <= width) {
      store_floats<kCount>(dz + i, values);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (i + k < width) dz[i + k] = device::float_to_bf16(values[k]);
      }
    }
  }
}

RowStatistics* statistics_of(const LogitChunk& chunk) {
  return reinterpret_cast<RowStatistics*>(chunk.statistics.data<double>());
}

std::int64_t edge_begin(const HeadEdges& edges, const LogitChunk& chunk, std::int64_t row) {
  return edges.edge_begin[static_cast<std::size_t>(chunk.row_begin + row)];
}

/// The column of an edge's target, -1 where another rank holds it.
std::int32_t column_of(const HeadEdges& edges, const LogitChunk& chunk, std::int64_t edge) {
  const auto column = edges.targets[static_cast<std::size_t>(edge)] - chunk.first_token;
  const bool here = column >= 0 && column < chunk.logits.shape()[1];
  return here ? static_cast<std::int32_t>(column) : -1;
}

float inverse_temperature(const LogitChunk& chunk) {
  return static_cast<float>(1.0 / chunk.temperature);
}

// As with_pack, but the last pack of a row need not be whole.
template <class F>
void with_logit_pack(const LogitChunk& chunk, F&& f) {
  with_pack(f, kPack, chunk.logits, chunk.gradient);
}

template <class T>
std::vector<T> download(ExecContext& ctx, ConstTensorView from) {
  std::vector<T> values(static_cast<std::size_t>(from.numel()));
  copy(ctx.stream.state(), {.kind = CopyKind::kToHost,
                            .to = values.data(),
                            .from = from.bytes(),
                            .bytes = from.numel() * size_of(from.dtype())});
  return values;
}

}  // namespace

void logprob_statistics(ExecContext& ctx, const LogitChunk& chunk) {
  const auto rows = chunk.logits.shape()[0], width = chunk.logits.shape()[1];
  with_logit_pack(chunk, [&](auto pack) {
    launch(ctx.stream, {blocks_for(rows, 1), kMostThreads, kWarps * std::int64_t{sizeof(double)}},
           statistics_kernel<pack>, rows_of<const float>(chunk.logits), width,
           inverse_temperature(chunk), statistics_of(chunk));
  });
}

void logprob_target_logits(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                           TensorView target_logits) {
  std::vector<Target> targets;
  for (std::int64_t r = 0; r < chunk.logits.shape()[0]; ++r) {
    for (auto edge = edge_begin(edges, chunk, r); edge < edge_begin(edges, chunk, r + 1); ++edge) {
      targets.push_back({static_cast<std::int32_t>(r), column_of(edges, chunk, edge)});
    }
  }
  ScratchScope scratch(ctx.scratch);
  const Target* uploaded = upload(ctx, scratch, std::span(targets));
  launch(ctx.stream, {blocks_for(std::ssize(targets), kMostThreads), kMostThreads},
         target_logits_kernel, rows_of<const float>(chunk.logits), uploaded, std::ssize(targets),
         target_logits.data<double>());
}

void logprob_merge_statistics(ExecContext& ctx, ConstTensorView all, const LogitChunk& chunk) {
  const auto rows = chunk.logits.shape()[0], ranks = rows == 0 ? 0 : all.shape()[0] / rows;
  launch(ctx.stream, {blocks_for(rows, kMostThreads), kMostThreads}, merge_kernel,
         reinterpret_cast<const RowStatistics*>(all.data<double>()), ranks, rows,
         1.0 / chunk.temperature, statistics_of(chunk));
}

void logprob_finish(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                    ConstTensorView target_logits, std::span<double> logprobs,
                    std::span<double> entropies) {
  auto statistics = download<double>(ctx, chunk.statistics);
  const auto targets = download<double>(ctx, target_logits);
  LogitChunk on_host = chunk;
  on_host.statistics = host_view(statistics.data(), chunk.statistics.shape());
  cpu::logprob_finish(ctx, edges, on_host, host_view(targets.data(), target_logits.shape()),
                      logprobs, entropies);
}

void logprob_gradient(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                      std::span<const double> c, std::span<const double> e) {
  const auto rows = chunk.logits.shape()[0], width = chunk.logits.shape()[1];
  const auto first_edge = edge_begin(edges, chunk, 0);
  std::vector<RowCoefficients> of_rows;
  std::vector<EdgeCoefficient> of_edges;
  for (std::int64_t r = 0; r < rows; ++r) {
    RowCoefficients row{};
    row.edge_begin = static_cast<std::int32_t>(of_edges.size());
    for (auto edge = edge_begin(edges, chunk, r); edge < edge_begin(edges, chunk, r + 1); ++edge) {
      const auto at = static_cast<std::size_t>(edge - first_edge);
      row.c_sum += c[at];
      row.e_sum += e[at];
      if (c[at] != 0 || e[at] != 0) row.learns = 1;
      const auto column = column_of(edges, chunk, edge);
      if (column >= 0) of_edges.push_back({column, static_cast<float>(c[at] / chunk.temperature)});
    }
    row.edge_end = static_cast<std::int32_t>(of_edges.size());
    of_rows.push_back(row);
  }
  ScratchScope scratch(ctx.scratch);
  const RowCoefficients* device_rows = upload(ctx, scratch, std::span(of_rows));
  const EdgeCoefficient* device_edges = upload(ctx, scratch, std::span(of_edges));
  with_logit_pack(chunk, [&](auto pack) {
    launch(ctx.stream, {blocks_for(rows, 1), kMostThreads}, gradient_kernel<pack>,
           rows_of<const float>(chunk.logits), width, inverse_temperature(chunk),
           statistics_of(chunk), device_rows, device_edges, rows_of<BF16>(chunk.gradient));
  });
}

}  // namespace coppice::cuda
