#include "launch/cluster_calibration.hpp"

#include <cmath>

#include "attention/prefix_attention.hpp"
#include "core/gemm.hpp"
#include "launch/calibration_bench.hpp"
#include "layers/rms_norm.hpp"
#include "layers/rope.hpp"
#include "layers/rows.hpp"
#include "layers/swiglu.hpp"
#include "layers/vocab_parallel_logprob.hpp"
#include "optim/adamw.hpp"
#include "optim/grad_norm.hpp"

namespace coppice {
namespace {

constexpr double kBytes = 4;  // of an f32
constexpr std::int64_t kRows = 1024;
// Operands take turns, so that none is still in a core's caches: a step's are not either. Warm ones
// were seen to multiply a quarter faster.
constexpr std::int64_t kSets = 12;
// Roughly the figures that are measured, for the time of each.
constexpr double kFigures = 42;

double product(auto... factors) { return (1.0 * ... * static_cast<double>(factors)); }

class Calibration {
 public:
  Calibration(Communicator& world, const CalibrationOptions& options)
      : bench_(world, options, options.seconds / kFigures) {
    cluster_.measured = true;
    cluster_.kind = DeviceKind::kCpu;
    cluster_.threads = options.threads;
    cluster_.ranks_per_node = world.size();
  }

  ClusterProfile run() {
    measure_memory();
    measure_gemm();
    measure_attention();
    measure_rows();
    measure_head();
    measure_optimizer();
    if (bench_.world().size() > 1) measure_link();
    hold_to_peak();
    return cluster_;
  }

 private:
  ExecContext& ctx() { return bench_.ctx(); }
  template <class T>
  static T& turn(std::vector<T>& sets, std::int64_t i) {
    return sets[static_cast<std::size_t>(i % std::ssize(sets))];
  }

  // Three streams of 16 MiB, from tensors that no cache holds: some hold half a GiB.
  void measure_memory() {
    const Shape shape{8192, 512};
    auto a = bench_.tensors(48, shape);
    cluster_.memory_bandwidth =
        3 * kBytes * static_cast<double>(shape.numel()) / bench_.seconds([&](std::int64_t i) {
          add_rows(ctx(), turn(a, 3 * i), turn(a, 3 * i + 1), turn(a, 3 * i + 2));
        });
  }

  // Products of a linear from d to 3 d features on many rows: their smallest extent is d.
  void measure_gemm() {
    Tensor tiny = bench_.tensor({1, 1}), result = bench_.tensor({1, 1});
    cluster_.call_seconds = bench_.seconds([&](std::int64_t) { gemm(ctx(), tiny, tiny, result); });
    for (const std::int64_t d : {16, 32, 64, 128, 256, 512, 1024}) {
      const std::int64_t in = d, out = 3 * d;
      auto x = bench_.tensors(kSets, {kRows, in}), y = bench_.tensors(kSets, {kRows, out});
      auto weight = bench_.tensors(kSets, {out, in});
      const double flops = 2 * product(kRows, in, out);
      const auto rate = [&](const auto& op) {
        return flops / std::max(bench_.seconds(op) - cluster_.call_seconds, 1e-9);
      };
      cluster_.gemm_forward.points.emplace_back(d, rate([&](std::int64_t i) {
                                                  gemm(ctx(), turn(x, i), turn(weight, i),
                                                       turn(y, i), {.b = Transpose::kYes});
                                                }));
      cluster_.gemm_input_gradient.points.emplace_back(
          d, rate([&](std::int64_t i) { gemm(ctx(), turn(y, i), turn(weight, i), turn(x, i)); }));
      cluster_.gemm_weight_gradient.points.emplace_back(
          d, rate([&](std::int64_t i) {
            gemm(ctx(), turn(y, i), turn(x, i), turn(weight, i), {.a = Transpose::kYes});
          }));
    }
    // The peak is the best of what the machine does with large squares.
    auto square = bench_.tensors(3, {1536, 1536});
    cluster_.peak_flops = 2 * product(1536, 1536, 1536) / bench_.seconds([&](std::int64_t) {
      gemm(ctx(), square[0], square[1], square[2]);
    });
  }

  // FLOPs of the pairs, and of one more key for each query row and range of keys it sees.
  struct AttentionSeconds {
    double forward, backward, keys, extra;
  };
  // Heads as columns of one fused matrix, three queries to a key, as small models have them.
  AttentionSeconds attention(std::int64_t dim, const std::vector<SegmentSpec>& segments) {
    constexpr std::int64_t kHeads = 6, kKeyValueHeads = 2;
    const AttentionPlan plan{PrefixForest(segments)};
    const auto rows = plan.query_rows(), width = (kHeads + 2 * kKeyValueHeads) * dim;
    auto qkv = bench_.tensors(kSets, {rows, width}), d_qkv = bench_.tensors(kSets, {rows, width});
    auto out = bench_.tensors(kSets, {rows, kHeads, dim});
    const Tensor d_out = bench_.tensor({rows, kHeads, dim});
    Tensor lse = bench_.tensor({kHeads, rows});
    const auto heads = [&](Tensor& fused, std::int64_t first, std::int64_t count) {
      return fused.view().columns(first * dim, count * dim).reshape({rows, count, dim});
    };
    const auto keys = [&](Tensor& fused) {
      return std::pair{heads(fused, kHeads, kKeyValueHeads),
                       heads(fused, kHeads + kKeyValueHeads, kKeyValueHeads)};
    };
    const double scale = 1 / std::sqrt(product(dim));
    const double forward = bench_.seconds([&](std::int64_t i) {
      const auto [k, v] = keys(turn(qkv, i));
      const KeySpace space{k, v};
      prefix_attention_forward(ctx(), plan, heads(turn(qkv, i), 0, kHeads), {&space, 1}, scale,
                               turn(out, i), lse);
    });
    const double backward = bench_.seconds([&](std::int64_t i) {
      const auto [k, v] = keys(turn(qkv, i));
      const auto [dk, dv] = keys(turn(d_qkv, i));
      const KeySpace space{k, v};
      const KeySpaceGrad grad{.dk = dk, .dv = dv};
      prefix_attention_backward(ctx(), plan, heads(turn(qkv, i), 0, kHeads), {&space, 1},
                                turn(out, i), lse, d_out, scale, heads(turn(d_qkv, i), 0, kHeads),
                                {&grad, 1});
    });
    double extra = 0;
    for (const QueryRange& range : plan.query_ranges())
      extra += product(range.length, std::ssize(range.full) + 1);
    return {forward, backward, 4 * product(kHeads, dim, plan.visible_pairs()),
            4 * product(kHeads, dim) * extra};
  }

  // Rates from one long sequence; what short ranges cost beyond their pairs from a prefix with many
  // short responses beside short sequences. Both at once: t = (pairs + extra x rows) / rate for
  // each.
  void measure_attention() {
    const std::vector<SegmentSpec> sequence{{1024, -1}};
    std::vector<SegmentSpec> group{{128, -1}};
    group.resize(13, {32, 0});
    group.resize(25, {80, -1});
    const AttentionSeconds whole = attention(64, sequence), parts = attention(64, group);
    const double ratio = (parts.forward + parts.backward) / (whole.forward + whole.backward);
    const double extra = (ratio * whole.keys - parts.keys) / (parts.extra - ratio * whole.extra);
    cluster_.extra_keys = std::max(0.0, extra);
    for (const std::int64_t dim : {16, 32, 64, 128}) {
      const AttentionSeconds at = dim == 64 ? whole : attention(dim, sequence);
      const double flops = at.keys + cluster_.extra_keys * at.extra;
      cluster_.attention_forward.points.emplace_back(dim, flops / at.forward);
      cluster_.attention_backward.points.emplace_back(dim, 2.5 * flops / at.backward);
    }
  }

  // Norm of the input, norm of a sum, both backward; SwiGLU, RoPE and sums of rows.
  void measure_rows() {
    constexpr std::int64_t kWidth = 512, kHeadDim = 64;
    auto x = bench_.tensors(kSets, {kRows, kWidth}), y = bench_.tensors(kSets, {kRows, kWidth});
    auto inner = bench_.tensors(kSets, {kRows, kWidth});
    auto gate_up = bench_.tensors(kSets, {kRows, 2 * kWidth});
    const Tensor gamma = bench_.tensor({kWidth});
    Tensor rstd = bench_.tensor({kRows}), d_gamma = bench_.tensor({kWidth});
    const double stream = kBytes * product(kRows, kWidth);
    cluster_.memory.rms_norm = 14 * stream / bench_.seconds([&](std::int64_t i) {
      Tensor &a = turn(x, i), &b = turn(y, i), &c = turn(inner, i);
      rms_norm_forward(ctx(), a, gamma, 1e-6, b, rstd);
      add_rms_norm_forward(ctx(), a, b, gamma, 1e-6, b, c, rstd);
      for (int twice = 0; twice < 2; ++twice)
        rms_norm_backward(ctx(), a, gamma, rstd, c, b.view(), b, d_gamma.view());
    });
    cluster_.memory.rows = 3 * stream / bench_.seconds([&](std::int64_t i) {
      add_rows(ctx(), turn(x, i), turn(inner, i), turn(y, i));
    });
    cluster_.memory.swiglu = 8 * stream / bench_.seconds([&](std::int64_t i) {
      swiglu_forward(ctx(), turn(gate_up, i), turn(inner, i));
      swiglu_backward(ctx(), turn(gate_up, i), turn(inner, i), turn(gate_up, i));
      std::swap(turn(gate_up, i), turn(gate_up, i + 1));
    });
    const RopeTable table(ctx().memory, DType::kF32, {}, kHeadDim, kRows);
    std::vector<std::int32_t> positions;
    for (std::int32_t i = 0; i < kRows; ++i) positions.push_back(i);
    cluster_.memory.rope = 2 * stream / bench_.seconds([&](std::int64_t i) {
      rope_forward(ctx(), table, positions,
                   turn(x, i).view().reshape({kRows, kWidth / kHeadDim, kHeadDim}));
    });
  }

  // The fused head with a width so small that what takes its time are the logits.
  void measure_head() {
    constexpr std::int64_t kEdges = 256, kVocabulary = 32768, kWidth = 16;
    std::vector<PredictionEdge> list;
    for (std::int64_t row = 0; row < kEdges; ++row)
      list.push_back({row, static_cast<std::int32_t>(row), 0, 0, static_cast<std::int32_t>(row)});
    const HeadEdges edges(list);
    const Tensor x = bench_.tensor({kEdges, kWidth}), weight = bench_.tensor({kVocabulary, kWidth});
    Tensor dx = bench_.tensor({kEdges, kWidth}), d_weight = bench_.tensor({kVocabulary, kWidth});
    std::vector<double> logprobs(kEdges), entropies(kEdges);
    const auto learn = [](std::int64_t, auto, auto, std::span<double> c, std::span<double>) {
      std::fill(c.begin(), c.end(), 1e-3);
    };
    const double head = bench_.seconds([&](std::int64_t) {
      logprob_forward_backward(ctx(), x, weight, edges, 1.0, kEdges, learn, logprobs, entropies, dx,
                               d_weight.view());
    });
    Tensor logits = bench_.tensor({kEdges, kVocabulary});
    const double products = bench_.seconds([&](std::int64_t) {
      gemm(ctx(), x, weight, logits, {.b = Transpose::kYes});
      gemm(ctx(), logits, weight, dx);
      gemm(ctx(), logits, x, d_weight, {.a = Transpose::kYes, .beta = 1.0});
    });
    cluster_.memory.logits =
        kBytes * product(kEdges, kVocabulary) / std::max(head - products, 0.1 * head);
  }

  // A GiB, as no cache holds it.
  void measure_optimizer() {
    constexpr std::int64_t kElements = std::int64_t{1} << 26;
    Tensor value = bench_.tensor({kElements}), grad = bench_.tensor({kElements});
    Tensor first = bench_.tensor({kElements}), second = bench_.tensor({kElements});
    for (std::int64_t i = 0; i < kElements; ++i)
      second.view().data<float>()[i] = 1.0f + static_cast<float>(i % 7);
    const AdamWTensors tensors{value, grad, first, second, true, std::nullopt};
    const AdamWCoefficients coefficients{.grad_scale = 1.0,
                                         .keep = 1.0,
                                         .one_minus_beta1 = 0.1,
                                         .beta2 = 0.95,
                                         .one_minus_beta2 = 0.05,
                                         .step_size = 1e-6,
                                         .denominator_scale = 1.0,
                                         .epsilon = 1e-8};
    cluster_.memory.adamw = 7 * kBytes * product(kElements) / bench_.seconds([&](std::int64_t) {
      adamw_update(ctx(), {&tensors, 1}, coefficients);
    });
    const std::vector<ConstTensorView> all{value, grad, first, second};
    cluster_.memory.grad_norm = 4 * kBytes * product(kElements) / bench_.seconds([&](std::int64_t) {
      cpu::sum_of_squares(ctx(), all);
    });
  }

  // A ring's time for little is its path's, for much its bandwidth's.
  void measure_link() {
    Communicator& world = bench_.world();
    const std::int64_t ranks = world.size(), elements = std::int64_t{1} << 20;
    Tensor part = bench_.tensor({elements}), whole = bench_.tensor({elements * ranks});
    const auto n = product(ranks), bytes = kBytes * product(elements);
    const auto gather = [&](std::int64_t count) {
      return bench_.seconds_together(count < 1000 ? 100 : 9, [&](std::int64_t) {
        world.all_gather(ctx().stream, part.view().rows(0, count),
                         whole.view().rows(0, count * ranks));
      });
    };
    const auto scatter = [&](std::int64_t count) {
      return bench_.seconds_together(count < 1000 ? 100 : 9, [&](std::int64_t) {
        world.reduce_scatter(ctx().stream, whole.view().rows(0, count * ranks),
                             part.view().rows(0, count));
      });
    };
    LinkRates& link = cluster_.within_node;
    link.latency = gather(16) / (n - 1);
    const double path = (n - 1) * link.latency;
    link.bandwidth = (n - 1) * bytes / std::max(gather(elements) - path, 1e-9);
    link.reduce_bandwidth = (n - 1) * bytes / std::max(scatter(elements) - path, 1e-9);
    // On the CPU a thread that moves data takes from the products what it hides. Of gradients' sums
    // two thirds were hidden, within layers nothing (docs/benchmarks/ranks_step.md).
    cluster_.gradient_overlap = 0.65;
  }

  // A rate that comes out above the best square's says that the square was held up: then it is the
  // peak.
  void hold_to_peak() {
    for (RateBySize* rates :
         {&cluster_.gemm_forward, &cluster_.gemm_input_gradient, &cluster_.gemm_weight_gradient,
          &cluster_.attention_forward, &cluster_.attention_backward})
      for (auto& [size, rate] : rates->points)
        cluster_.peak_flops = std::max(cluster_.peak_flops, rate);
  }

  CalibrationBench bench_;
  ClusterProfile cluster_;
};

}  // namespace

ClusterProfile calibrate_cpu(Communicator& world, const CalibrationOptions& options) {
  return Calibration(world, options).run();
}

}  // namespace coppice
