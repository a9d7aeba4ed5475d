// The head on the edge rows of one group: the whole of it, and its share that is not matrix
// multiplication.
#include "layers/vocab_parallel_logprob.hpp"

#include "support/bench_context.hpp"

namespace coppice::bench {
namespace {

using namespace smollm2;

HeadEdges one_edge_per_row() {
  HeadEdges edges;
  for (std::int64_t r = 0; r < kHeadRows; ++r) {
    edges.rows.push_back(r);
    edges.targets.push_back(static_cast<std::int32_t>(r * 97 % kVocabulary));
    edges.edge_begin.push_back(r + 1);
  }
  return edges;
}

void logprob_forward_and_backward(benchmark::State& state) {
  BenchContext bench;
  const Tensor x = bench.random({kHeadRows, kHidden});
  const Tensor weight = bench.random({kVocabulary, kHidden}, 0.05f);
  Tensor dx = bench.random({kHeadRows, kHidden}), dweight = bench.random({kVocabulary, kHidden});
  const HeadEdges edges = one_edge_per_row();
  std::vector<double> logprobs(kHeadRows), entropies(kHeadRows);
  const auto chunk_rows =
      logprob_chunk_rows(DType::kF32, kHeadRows, kVocabulary, state.range(0) << 20);
  for (auto _ : state) {
    logprob_forward_backward(
        bench.ctx, x, weight, edges, 1.0, chunk_rows,
        [](std::int64_t, auto, auto, std::span<double> c, std::span<double> e) {
          std::fill(c.begin(), c.end(), 1e-3);
          std::fill(e.begin(), e.end(), 1e-4);
        },
        logprobs, entropies, dx, dweight.view());
  }
  state.counters["FLOP/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * 6 * kHeadRows * kVocabulary * kHidden),
      benchmark::Counter::kIsRate);
}
BENCHMARK(logprob_forward_and_backward)
    ->Arg(16)
    ->Arg(32)
    ->Arg(64)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void logprob_statistics_and_gradient(benchmark::State& state) {
  BenchContext bench;
  constexpr std::int64_t kRows = 128;
  HeadEdges edges = one_edge_per_row();
  Tensor logits = bench.random({kRows, kVocabulary}, 3.0f);
  Tensor statistics(bench.memory, DType::kF64, Shape({kRows, 3}), "bench");
  Tensor targets(bench.memory, DType::kF64, Shape({kRows}), "bench");
  const LogitChunk chunk{.logits = logits,
                         .gradient = logits,
                         .statistics = statistics,
                         .row_begin = 0,
                         .first_token = 0,
                         .temperature = 1.0};
  std::vector<double> logprobs(kHeadRows), entropies(kHeadRows), c(kRows, 1e-3), e(kRows, 1e-4);
  for (auto _ : state) {
    cpu::logprob_statistics(bench.ctx, chunk);
    cpu::logprob_target_logits(bench.ctx, edges, chunk, targets);
    cpu::logprob_finish(bench.ctx, edges, chunk, targets, logprobs, entropies);
    cpu::logprob_gradient(bench.ctx, edges, chunk, c, e);
  }
  state.SetItemsProcessed(state.iterations() * logits.numel());
}
BENCHMARK(logprob_statistics_and_gradient)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace coppice::bench
