// The gated activation alone.
#include "layers/swiglu.hpp"

#include "support/bench_context.hpp"

namespace coppice::bench {
namespace {

using namespace smollm2;

void swiglu_forward_rows(benchmark::State& state) {
  BenchContext bench;
  const Tensor gate_up = bench.random({kTokens, 2 * kIntermediate});
  Tensor hidden = bench.random({kTokens, kIntermediate});
  for (auto _ : state) swiglu_forward(bench.ctx, gate_up, hidden);
  state.SetItemsProcessed(state.iterations() * hidden.numel());
}
BENCHMARK(swiglu_forward_rows)->UseRealTime();

void swiglu_backward_rows(benchmark::State& state) {
  BenchContext bench;
  const Tensor gate_up = bench.random({kTokens, 2 * kIntermediate});
  const Tensor d_hidden = bench.random({kTokens, kIntermediate});
  Tensor d_gate_up = bench.random({kTokens, 2 * kIntermediate});
  for (auto _ : state) swiglu_backward(bench.ctx, gate_up, d_hidden, d_gate_up);
  state.SetItemsProcessed(state.iterations() * d_hidden.numel());
}
BENCHMARK(swiglu_backward_rows)->UseRealTime();

}  // namespace
}  // namespace coppice::bench
