// Rates of prefix attention beside the machine's own sgemm rate, at the shapes that the project is
// tuned for. FLOPs are counted as in peers' tables: 4 Hq D per visible pair forward, 2.5 times that
// backward. Machines are shared, so the best of many runs is reported, for both sides.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>

#include "attention/prefix_attention.hpp"
#include "core/rng.hpp"
#include "support/sgemm_rate.hpp"

namespace coppice::bench {
namespace {

constexpr int kThreads = 2;

struct Case {
  std::int64_t prefix, response, group_size, heads, kv_heads, dim;
};

class Problem {
 public:
  Problem(const Case& c, DType dtype) : dtype_(dtype), ctx_{stream_, memory_, scratch_, kThreads} {
    std::vector<SegmentSpec> specs{{c.prefix, -1}};
    for (std::int64_t i = 0; i < c.group_size; ++i) specs.push_back({c.response, 0});
    plan_ = AttentionPlan(PrefixForest(specs));
    const auto rows = plan_.query_rows(), width = (c.heads + 2 * c.kv_heads) * c.dim;
    flops_ = 4.0 * static_cast<double>(c.heads * c.dim * plan_.visible_pairs());
    scale_ = 1 / std::sqrt(static_cast<double>(c.dim));
    // Columns of one fused matrix, as in the model.
    qkv_ = random({rows, width}), dqkv_ = random({rows, width});
    out_ = random({rows, c.heads, c.dim}), d_out_ = random({rows, c.heads, c.dim});
    lse_ = random({c.heads, rows});
    const auto part = [&](Tensor& x, std::int64_t begin, std::int64_t heads) {
      return x.view().columns(begin * c.dim, heads * c.dim).reshape({rows, heads, c.dim});
    };
    q_ = part(qkv_, 0, c.heads), dq_ = part(dqkv_, 0, c.heads);
    space_ = {part(qkv_, c.heads, c.kv_heads), part(qkv_, c.heads + c.kv_heads, c.kv_heads)};
    grad_ = {part(dqkv_, c.heads, c.kv_heads), part(dqkv_, c.heads + c.kv_heads, c.kv_heads)};
  }

  void forward() { prefix_attention_forward(ctx_, plan_, q_, {&space_, 1}, scale_, out_, lse_); }
  void backward() {
    prefix_attention_backward(ctx_, plan_, q_, {&space_, 1}, out_, lse_, d_out_, scale_, dq_,
                              {&grad_, 1});
  }
  double flops() const { return flops_; }

 private:
  Tensor random(Shape shape) {
    Tensor x(memory_, dtype_, shape, "bench");
    const RandomStream stream(1, "bench");
    visit_float(dtype_, [&]<class T>(TypeTag<T>) {
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        x.view().data<T>()[i] = static_cast<T>(stream.normal(static_cast<std::uint64_t>(i)));
      }
    });
    return x;
  }

  DType dtype_;
  Memory memory_{Device{}};
  Stream stream_{Device{}};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
  AttentionPlan plan_;
  double flops_ = 0, scale_ = 1;
  Tensor qkv_, dqkv_, out_, d_out_, lse_;
  ConstTensorView q_;
  TensorView dq_;
  KeySpace space_;
  KeySpaceGrad grad_;
};

template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(benchmark::State& state, const Case& c, DType dtype, bool backward) {
  Problem problem(c, dtype);
  problem.forward();
  SgemmRate sgemm(kThreads);
  sgemm.sample();
  double best = 1e30;
  for (auto _ : state) {
    best = std::min(best, seconds([&] { backward ? problem.backward() : problem.forward(); }));
  }
  sgemm.sample();
  const double rate = problem.flops() * (backward ? 2.5 : 1.0) / best;
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["sgemm"] = sgemm.rate() / 1e9;
  state.counters["of_sgemm"] = rate / sgemm.rate();
}

void add(const char* name, const Case& c, DType dtype) {
  for (const bool backward : {false, true}) {
    const auto full =
        fmt::format("{}/{}/{}", backward ? "backward" : "forward", name, name_of(dtype));
    benchmark::RegisterBenchmark(full.c_str(), run, c, dtype, backward)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  using coppice::DType;
  using coppice::bench::add;
  add("smollm2_P512_R64_G8", {512, 64, 8, 9, 3, 64}, DType::kF32);
  add("smollm2_P2048_R64_G16", {2048, 64, 16, 9, 3, 64}, DType::kF32);
  add("smollm2_P512_R20_G8", {512, 20, 8, 9, 3, 64}, DType::kF32);
  add("smollm2_causal_576", {576, 0, 0, 9, 3, 64}, DType::kF32);
  add("llama3_8b_P512_R64_G8", {512, 64, 8, 32, 8, 128}, DType::kF32);
  add("mha_P512_R64_G8", {512, 64, 8, 8, 8, 64}, DType::kF32);
  add("smollm2_P512_R64_G8", {512, 64, 8, 9, 3, 64}, DType::kF64);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
