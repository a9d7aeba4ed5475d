// The norm alone. It waits for memory: compare bytes per second with the machine's.
#include "layers/rms_norm.hpp"

#include "support/bench_context.hpp"

namespace coppice::bench {
namespace {

using namespace smollm2;

void rms_norm_forward_and_residual(benchmark::State& state) {
  BenchContext bench;
  const Tensor x = bench.random({kTokens, kHidden}), gamma = bench.random({kHidden});
  Tensor delta = bench.random({kTokens, kHidden}), y = bench.random({kTokens, kHidden});
  Tensor rstd = bench.random({kTokens});
  for (auto _ : state) add_rms_norm_forward(bench.ctx, x, delta, gamma, 1e-5, delta, y, rstd);
  state.SetBytesProcessed(state.iterations() * 4 * x.size_bytes());
}
BENCHMARK(rms_norm_forward_and_residual)->UseRealTime();

void rms_norm_backward_and_residual(benchmark::State& state) {
  BenchContext bench;
  const Tensor x = bench.random({kTokens, kHidden}), gamma = bench.random({kHidden});
  const Tensor rstd = bench.random({kTokens}), dy = bench.random({kTokens, kHidden}, 1e-3f);
  Tensor dx = bench.random({kTokens, kHidden}), dgamma = bench.random({kHidden});
  for (auto _ : state) rms_norm_backward(bench.ctx, x, gamma, rstd, dy, dx, dx, dgamma.view());
  state.SetBytesProcessed(state.iterations() * 4 * x.size_bytes());
}
BENCHMARK(rms_norm_backward_and_residual)->UseRealTime();

}  // namespace
}  // namespace coppice::bench
