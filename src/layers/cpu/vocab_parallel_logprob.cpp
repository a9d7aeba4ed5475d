// The head's work on a chunk of logits on the CPU: rows over threads, columns in vectors. Sums over
// the vocabulary are f32 only within a block of columns and double between blocks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/cpu/vocab_parallel_logprob.cpp"
#include <hwy/foreach_target.h>
// after foreach_target.h
#include <cmath>
#include <limits>

#include "core/parallel_for.hpp"
#include "layers/cpu/vector_math-inl.hpp"
#include "layers/vocab_parallel_logprob.hpp"

HWY_BEFORE_NAMESPACE();
namespace coppice::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kColumnBlock = 1024;

/// (z - largest) / temperature, held finite so that 0 probabilities (-inf logits too) stay 0 in
/// products. NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> distance(D tag, const hn::TFromD<D>* z, hn::TFromD<D> largest,
                               hn::TFromD<D> inverse_temperature) {
  using T = hn::TFromD<D>;
  const auto d =
      hn::Mul(hn::Sub(hn::LoadU(tag, z), hn::Set(tag, largest)), hn::Set(tag, inverse_temperature));
  const auto lowest = hn::Set(tag, ExpConstants<T>::kLowest - T{1});
  return hn::IfThenElse(hn::Lt(d, lowest), lowest, d);
}

template <class T>
T row_max(std::int64_t n, const T* z) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  T largest = z[0];
  std::int64_t i = 0;
  if (n >= lanes) {
    auto most = hn::LoadU(tag, z);
    for (i = lanes; i + lanes <= n; i += lanes) most = hn::Max(most, hn::LoadU(tag, z + i));
    largest = hn::GetLane(hn::MaxOfLanes(tag, most));
  }
  for (; i < n; ++i) largest = z[i] > largest ? z[i] : largest;
  return largest;
}

/// sum = sum of exp(d), moment = sum of exp(d) d
template <class T>
void row_sums(std::int64_t n, const T* z, T largest, T inverse_temperature, double& sum,
              double& moment) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  sum = moment = 0;
  std::int64_t i = 0;
  while (i + lanes <= n) {
    const auto end = n < i + kColumnBlock ? n : i + kColumnBlock;
    auto sums = hn::Zero(tag), moments = sums;
    for (; i + lanes <= end; i += lanes) {
      const auto d = distance(tag, z + i, largest, inverse_temperature);
      const auto p = exp_keeping_nan(tag, d);
      sums = hn::Add(sums, p);
      moments = hn::MulAdd(p, d, moments);
    }
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(tag, sums)));
    moment += static_cast<double>(hn::GetLane(hn::SumOfLanes(tag, moments)));
  }
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) {
    const auto d = distance(one, z + i, largest, inverse_temperature);
    const auto p = exp_keeping_nan(one, d);
    sum += static_cast<double>(hn::GetLane(p));
    moment += static_cast<double>(hn::GetLane(p)) * static_cast<double>(hn::GetLane(d));
  }
}

/// z = exp(d) (logprob_scale + entropy_scale (d - mean)), in place.
template <class T>
void row_gradient(std::int64_t n, T* z, T largest, T inverse_temperature, T mean, T logprob_scale,
                  T entropy_scale) {
  for_vectors<T>(n, [&](auto tag, std::int64_t i) HWY_ATTR {
    const auto d = distance(tag, z + i, largest, inverse_temperature);
    const auto p = exp_keeping_nan(tag, d);
    const auto slope = hn::MulAdd(hn::Set(tag, entropy_scale), hn::Sub(d, hn::Set(tag, mean)),
                                  hn::Set(tag, logprob_scale));
    hn::StoreU(hn::Mul(p, slope), tag, z + i);
  });
}

float row_max_f32(std::int64_t n, const float* z) { return row_max(n, z); }
double row_max_f64(std::int64_t n, const double* z) { return row_max(n, z); }
void row_sums_f32(std::int64_t n, const float* z, float largest, float inverse_temperature,
                  double& sum, double& moment) {
  row_sums(n, z, largest, inverse_temperature, sum, moment);
}
void row_sums_f64(std::int64_t n, const double* z, double largest, double inverse_temperature,
                  double& sum, double& moment) {
  row_sums(n, z, largest, inverse_temperature, sum, moment);
}
void row_gradient_f32(std::int64_t n, float* z, float largest, float inverse_temperature,
                      float mean, float logprob_scale, float entropy_scale) {
  row_gradient(n, z, largest, inverse_temperature, mean, logprob_scale, entropy_scale);
}
void row_gradient_f64(std::int64_t n, double* z, double largest, double inverse_temperature,
                      double mean, double logprob_scale, double entropy_scale) {
  row_gradient(n, z, largest, inverse_temperature, mean, logprob_scale, entropy_scale);
}

}  // namespace
}  // namespace coppice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::cpu {
namespace {

HWY_EXPORT(row_max_f32);
HWY_EXPORT(row_max_f64);
HWY_EXPORT(row_sums_f32);
HWY_EXPORT(row_sums_f64);
HWY_EXPORT(row_gradient_f32);
HWY_EXPORT(row_gradient_f64);

template <class T>
struct Bodies {
  static auto max() {
    if constexpr (std::is_same_v<T, float>) {
      return HWY_DYNAMIC_DISPATCH(row_max_f32);
    } else {
      return HWY_DYNAMIC_DISPATCH(row_max_f64);
    }
  }
  static auto sums() {
    if constexpr (std::is_same_v<T, float>) {
      return HWY_DYNAMIC_DISPATCH(row_sums_f32);
    } else {
      return HWY_DYNAMIC_DISPATCH(row_sums_f64);
    }
  }
  static auto gradient() {
    if constexpr (std::is_same_v<T, float>) {
      return HWY_DYNAMIC_DISPATCH(row_gradient_f32);
    } else {
      return HWY_DYNAMIC_DISPATCH(row_gradient_f64);
    }
  }
};

/// A row's entries of LogitChunk::statistics.
struct RowStatistics {
  double largest, log_sum, mean;
};

RowStatistics* statistics_of(const LogitChunk& chunk) {
  return reinterpret_cast<RowStatistics*>(chunk.statistics.data<double>());
}

/// Index of the first edge of the chunk's row.
std::int64_t edge_begin(const HeadEdges& edges, const LogitChunk& chunk, std::int64_t row) {
  return edges.edge_begin[static_cast<std::size_t>(chunk.row_begin + row)];
}

}  // namespace

void logprob_statistics(ExecContext& ctx, const LogitChunk& chunk) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const auto vocabulary = chunk.logits.shape()[1];
  const double inverse_temperature = 1.0 / chunk.temperature;
  visit_float(chunk.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const auto max = Bodies<T>::max();
    const auto sums = Bodies<T>::sums();
    parallel_for_ranges(ctx, chunk.logits.shape()[0], 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        RowStatistics& row = statistics_of(chunk)[r];
        row = {kNothing, kNothing, 0.0};
        if (vocabulary == 0) continue;
        const T* z = chunk.logits.data<T>() + r * chunk.logits.strides()[0];
        const T largest = max(vocabulary, z);
        double sum, moment;
        sums(vocabulary, z, largest, static_cast<T>(inverse_temperature), sum, moment);
        row = {static_cast<double>(largest), std::log(sum), moment / sum};
      }
    });
  });
}

void logprob_target_logits(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                           TensorView target_logits) {
  const auto first_edge = edge_begin(edges, chunk, 0), vocabulary = chunk.logits.shape()[1];
  visit_float(chunk.logits.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for_ranges(
        ctx, chunk.logits.shape()[0], 64, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            const T* z = chunk.logits.data<T>() + r * chunk.logits.strides()[0];
            for (auto edge = edge_begin(edges, chunk, r); edge < edge_begin(edges, chunk, r + 1);
                 ++edge) {
              const auto column = edges.targets[static_cast<std::size_t>(edge)] - chunk.first_token;
              const bool here = column >= 0 && column < vocabulary;
              target_logits.data<double>()[edge - first_edge] =
                  here ? static_cast<double>(z[column]) : 0.0;
            }
          }
        });
  });
}

void logprob_merge_statistics(ExecContext& ctx, ConstTensorView all, const LogitChunk& chunk) {
  const auto rows = chunk.logits.shape()[0], ranks = rows == 0 ? 0 : all.shape()[0] / rows;
  const double inverse_temperature = 1.0 / chunk.temperature;
  const auto* of_ranks = reinterpret_cast<const RowStatistics*>(all.data<double>());
  parallel_for_ranges(ctx, rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      double largest = of_ranks[r].largest;
      for (std::int64_t rank = 1; rank < ranks; ++rank) {
        const double other = of_ranks[rank * rows + r].largest;
        // NaN stays: a row that is no number shows it.
        largest = largest < other || std::isnan(other) ? other : largest;
      }
      double sum = 0, moment = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const RowStatistics& part = of_ranks[rank * rows + r];
        const double shift = (part.largest - largest) * inverse_temperature;
        const double weight = std::exp(part.log_sum + shift);
        if (weight == 0) continue;  // nothing there: its mean has no meaning
        sum += weight;
        moment += weight * (part.mean + shift);
      }
      statistics_of(chunk)[r] = {largest, std::log(sum), moment / sum};
    }
  });
}

void logprob_finish(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                    ConstTensorView target_logits, std::span<double> logprobs,
                    std::span<double> entropies) {
  const auto first_edge = edge_begin(edges, chunk, 0);
  const double inverse_temperature = 1.0 / chunk.temperature;
  parallel_for_ranges(ctx, chunk.logits.shape()[0], 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const RowStatistics& row = statistics_of(chunk)[r];
      for (auto edge = edge_begin(edges, chunk, r); edge < edge_begin(edges, chunk, r + 1);
           ++edge) {
        const double target = target_logits.data<double>()[edge - first_edge];
        logprobs[static_cast<std::size_t>(edge)] =
            (target - row.largest) * inverse_temperature - row.log_sum;
        entropies[static_cast<std::size_t>(edge)] = row.log_sum - row.mean;
      }
    }
  });
}

void logprob_gradient(ExecContext& ctx, const HeadEdges& edges, const LogitChunk& chunk,
                      std::span<const double> c, std::span<const double> e) {
  const auto vocabulary = chunk.logits.shape()[1];
  const double inverse_temperature = 1.0 / chunk.temperature;
  const auto first_edge = edge_begin(edges, chunk, 0);
  visit_float(chunk.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const auto body = Bodies<T>::gradient();
    parallel_for_ranges(ctx, chunk.logits.shape()[0], 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T* z = chunk.logits.data<T>() + r * chunk.logits.strides()[0];
        const auto edge_end = edge_begin(edges, chunk, r + 1);
        double c_sum = 0, e_sum = 0;
        bool learns = false;
        for (auto edge = edge_begin(edges, chunk, r); edge < edge_end; ++edge) {
          const auto at = static_cast<std::size_t>(edge - first_edge);
          c_sum += c[at];
          e_sum += e[at];
          learns = learns || c[at] != 0 || e[at] != 0;
        }
        if (!learns) {
          std::fill_n(z, vocabulary, T{0});
          continue;
        }
        const RowStatistics& row = statistics_of(chunk)[r];
        // p = exp(d) / sum and log p + H = d - mean, so the row's gradient is one pass over exp(d).
        const double scale = -inverse_temperature * std::exp(-row.log_sum);
        body(vocabulary, z, static_cast<T>(row.largest), static_cast<T>(inverse_temperature),
             static_cast<T>(row.mean), static_cast<T>(scale * c_sum),
             static_cast<T>(scale * e_sum));
        for (auto edge = edge_begin(edges, chunk, r); edge < edge_end; ++edge) {
          const auto column = edges.targets[static_cast<std::size_t>(edge)] - chunk.first_token;
          if (column < 0 || column >= vocabulary) continue;
          z[column] +=
              static_cast<T>(inverse_temperature * c[static_cast<std::size_t>(edge - first_edge)]);
        }
      }
    });
  });
}

}  // namespace coppice::cpu
#endif  // HWY_ONCE
