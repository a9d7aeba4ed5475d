// One block of SmolLM2 on one group, forward and backward, as a share of the machine's own sgemm
// rate. Useful FLOPs as the program counts them: linears and visible pairs, backward twice forward.
#include "layers/transformer_block.hpp"

#include "support/bench_context.hpp"
#include "support/sgemm_rate.hpp"

namespace coppice::bench {
namespace {

using namespace smollm2;

void block_forward_and_backward(benchmark::State& state) {
  BenchContext bench;
  std::vector<SegmentSpec> specs{{512, -1}};
  for (int i = 0; i < 8; ++i) specs.push_back({64, 0});
  const PrefixForest forest(specs);
  const AttentionPlan plan(forest);
  const auto positions = forest.positions();
  const RopeTable table(bench.memory, DType::kF32, {}, kHeadDim, 576);
  const auto self = make_self_communicator();
  const ParallelContext parallel{*self, *self, *self};
  TransformerBlock block(parallel, {bench.memory, DType::kF32},
                         {.name = "block",
                          .hidden_size = kHidden,
                          .intermediate_size = kIntermediate,
                          .num_attention_heads = kHeads,
                          .num_key_value_heads = kKeyValueHeads,
                          .head_dim = kHeadDim});
  std::vector<Parameter*> parameters;
  block.collect(parameters);
  double weights = 0;
  for (Parameter* parameter : parameters) {
    const RandomStream stream(1, parameter->name);
    float *value = parameter->value.view().data<float>(),
          *grad = parameter->grad.view().data<float>();
    for (std::int64_t i = 0; i < parameter->value.numel(); ++i) {
      value[i] = 0.05f * static_cast<float>(stream.normal(static_cast<std::uint64_t>(i)));
      grad[i] = 0;
    }
    if (parameter->value.shape().rank() == 2)
      weights += static_cast<double>(parameter->value.numel());
  }
  Arena activations(bench.memory, "activations");
  const Tensor x = bench.random({kTokens, kHidden}), dy = bench.random({kTokens, kHidden}, 1e-3f);
  Tensor y = bench.random({kTokens, kHidden}), dx = bench.random({kTokens, kHidden});
  const auto recompute = static_cast<Recompute>(state.range(0));
  const SharedRows nothing_shared;
  const PackedRows rows{plan, positions, table, nothing_shared};
  for (auto _ : state) {
    activations.reset();
    auto acts = block.lease_activations(activations, kTokens, recompute);
    block.forward(bench.ctx, x, rows, acts, y);
    block.backward(bench.ctx, x, rows, std::move(acts), dy, dx);
  }
  const double flops = 3 * (2 * weights * kTokens +
                            4.0 * kHeads * kHeadDim * static_cast<double>(plan.visible_pairs()));
  SgemmRate sgemm(bench.ctx.threads);
  for (int i = 0; i < 3; ++i) sgemm.sample();
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
  state.counters["sgemm"] = sgemm.rate();
}
BENCHMARK(block_forward_and_backward)
    ->Arg(static_cast<int>(Recompute::kNone))
    ->Arg(static_cast<int>(Recompute::kSelective))
    ->Arg(static_cast<int>(Recompute::kBlock))
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace coppice::bench
