#pragma once
// What the tests of the head share: edges, the head's steps on whatever device, logits given
// directly.
#include "core/build_config.hpp"
#include "layers/support.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "reference/naive_logprob.hpp"

namespace coppice::test {

using Numbers = std::vector<double>;

/// `edges_of_row[r]` targets of head row r.
inline HeadEdges edges_of(const std::vector<std::vector<std::int32_t>>& edges_of_row) {
  HeadEdges edges;
  for (std::size_t r = 0; r < edges_of_row.size(); ++r) {
    edges.rows.push_back(static_cast<std::int64_t>(3 * r));
    edges.targets.insert(edges.targets.end(), edges_of_row[r].begin(), edges_of_row[r].end());
    edges.edge_begin.push_back(std::ssize(edges.targets));
  }
  return edges;
}

/// Rows with one, several and repeated targets; the first row stands for the last prefix row.
inline HeadEdges mixed_edges(std::int64_t rows, std::int64_t vocabulary) {
  std::vector<std::vector<std::int32_t>> targets;
  const auto last = static_cast<std::int32_t>(vocabulary - 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto t = static_cast<std::int32_t>(r * 5 % vocabulary);
    if (r % 3 == 0) {
      targets.push_back({t, last, t, 0, t});
    } else {
      targets.push_back({t});
    }
  }
  return edges_of(targets);
}

inline std::vector<reference::LogprobEdge> reference_edges(const HeadEdges& edges) {
  std::vector<reference::LogprobEdge> list;
  for (std::int64_t r = 0; r < edges.row_count(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    for (auto i = edges.edge_begin[at]; i < edges.edge_begin[at + 1]; ++i) {
      list.push_back({r, edges.targets[static_cast<std::size_t>(i)]});
    }
  }
  return list;
}

inline Numbers numbers(std::string_view name, std::int64_t count) {
  const RandomStream stream(3, name);
  Numbers values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(stream.normal(static_cast<std::uint64_t>(i)));
  }
  return values;
}

struct HeadResult {
  Numbers logprobs, entropies;
  Tensor dx, dweight;
};

/// Fused, with c and e given beforehand.
inline HeadResult run_head(TestContext& test, ConstTensorView x, ConstTensorView weight,
                           const HeadEdges& edges, double temperature, std::int64_t chunk_rows,
                           const Numbers& c, const Numbers& e,
                           const std::optional<VocabRanks>& vocabulary = std::nullopt) {
  const auto count = static_cast<std::size_t>(edges.edge_count());
  HeadResult result{Numbers(count), Numbers(count), test.filled(x.dtype(), x.shape(), 9.0),
                    test.filled(accumulation_of(x.dtype()), weight.shape(), 0.5)};
  logprob_forward_backward(
      test.ctx(), x, weight, edges, temperature, chunk_rows,
      [&](std::int64_t first_edge, std::span<const double> logprobs, std::span<const double>,
          std::span<double> c_out, std::span<double> e_out) {
        for (std::size_t i = 0; i < logprobs.size(); ++i) {
          c_out[i] = c[static_cast<std::size_t>(first_edge) + i];
          e_out[i] = e[static_cast<std::size_t>(first_edge) + i];
        }
      },
      result.logprobs, result.entropies, result.dx, result.dweight.view(), vocabulary);
  return result;
}

/// The steps of a device's body.
struct HeadBody {
  decltype(&cpu::logprob_statistics) statistics = cpu::logprob_statistics;
  decltype(&cpu::logprob_target_logits) target_logits = cpu::logprob_target_logits;
  decltype(&cpu::logprob_merge_statistics) merge_statistics = cpu::logprob_merge_statistics;
  decltype(&cpu::logprob_finish) finish = cpu::logprob_finish;
  decltype(&cpu::logprob_gradient) gradient = cpu::logprob_gradient;
};

inline HeadBody head_body(const ExecContext& ctx) {
  if constexpr (build::kWithCuda) {
    if (ctx.device().kind == DeviceKind::kCuda) {
      return {cuda::logprob_statistics, cuda::logprob_target_logits, cuda::logprob_merge_statistics,
              cuda::logprob_finish, cuda::logprob_gradient};
    }
  }
  return {};
}

/// Logits given directly, to state what no multiplication can make.
struct GivenLogits {
  GivenLogits(TestContext& test, DType dtype, const std::vector<double>& values,
              std::int64_t vocabulary, HeadEdges head_edges)
      : edges(std::move(head_edges)),
        logits(test.from(accumulation_of(dtype), {edges.row_count(), vocabulary}, values)),
        gradient(dtype == DType::kBF16
                     ? TensorView(logits.view().bytes(), dtype, logits.shape(),
                                  Shape({2 * vocabulary, 1}), logits.view().device())
                     : logits.view()),
        statistics(test.zeros(DType::kF64, {edges.row_count(), 3})),
        targets(test.zeros(DType::kF64, {edges.edge_count()})),
        logprobs(static_cast<std::size_t>(edges.edge_count())),
        entropies(logprobs.size()) {}

  void run(ExecContext& ctx, double temperature, const Numbers& c, const Numbers& e) {
    const LogitChunk chunk{logits, gradient, statistics, 0, 0, temperature};
    const HeadBody body = head_body(ctx);
    body.statistics(ctx, chunk);
    body.target_logits(ctx, edges, chunk, targets);
    body.finish(ctx, edges, chunk, targets, logprobs, entropies);
    body.gradient(ctx, edges, chunk, c, e);
  }

  HeadEdges edges;
  Tensor logits;
  TensorView gradient;
  Tensor statistics, targets;
  Numbers logprobs, entropies;
};

}  // namespace coppice::test
