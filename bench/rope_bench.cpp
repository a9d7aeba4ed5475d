// The rotary embedding alone, on the q and k columns of a fused matrix.
#include "layers/rope.hpp"

#include <numeric>

#include "support/bench_context.hpp"

namespace coppice::bench {
namespace {

using namespace smollm2;

void rope_rows(benchmark::State& state) {
  BenchContext bench;
  constexpr std::int64_t kTurned = kHeads + kKeyValueHeads;
  Tensor qkv = bench.random({kTokens, (kTurned + kKeyValueHeads) * kHeadDim});
  const RopeTable table(bench.memory, DType::kF32, {}, kHeadDim, kTokens);
  std::vector<std::int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  const TensorView heads =
      qkv.view().columns(0, kTurned * kHeadDim).reshape({kTokens, kTurned, kHeadDim});
  for (auto _ : state) rope_forward(bench.ctx, table, positions, heads);
  state.SetItemsProcessed(state.iterations() * heads.numel());
}
BENCHMARK(rope_rows)->UseRealTime();

}  // namespace
}  // namespace coppice::bench
