// One GRPO step of SmolLM2-135M shapes on random weights, grouped and repeated, against the
// machine's own sgemm rate measured between the steps. Prints the figures that docs quote:
// seconds, useful GFLOP/s (executed_flops, docs/metrics.md), their share of sgemm, and the ratio
// of the two packings beside the bound by FLOPs.
#include <omp.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "model/policy_model.hpp"
#include "optim/adamw.hpp"
#include "optim/grad_norm.hpp"
#include "support/packed_groups.hpp"
#include "support/sgemm_rate.hpp"

namespace coppice::bench {
namespace {

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
  "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
  "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.02})";

struct Options {
  std::int64_t prefix = 512, response = 64, group_size = 8;
  int repetitions = 3, threads = omp_get_num_procs();
  std::string recompute = "NONE";
};

struct StepTime {
  double seconds = 0;
  PhaseSeconds phases;
};

StepTime timed_step(ExecContext& ctx, PolicyModel& model, AdamW& adamw, const PackedBatch& batch,
                    Recompute recompute) {
  std::vector<double> logprobs(batch.edges.size()), entropies(batch.edges.size());
  const auto start = std::chrono::steady_clock::now();
  StepTime time;
  model.zero_gradients(ctx);
  // On policy: ratio 1, so c = -A w. Advantages alternate in sign.
  const auto coefficients = [&](std::int64_t first, std::span<const double>,
                                std::span<const double>, std::span<double> c, std::span<double> e) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      const auto& edge = batch.edges[static_cast<std::size_t>(first) + i];
      c[i] = (edge.response % 2 == 0 ? -1.0 : 1.0) / static_cast<double>(batch.edges.size());
      e[i] = 0;
    }
  };
  model.forward_backward(ctx, batch, recompute, 1.0, coefficients, logprobs, entropies,
                         &time.phases);
  const auto parameters = model.parameters();
  const double norm = global_grad_norm(ctx, parameters);
  adamw.step(ctx, 1e-6, clip_scale(norm, 1.0));
  time.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return time;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(const Options& options) {
  const auto recompute = options.recompute == "BLOCK"       ? Recompute::kBlock
                         : options.recompute == "SELECTIVE" ? Recompute::kSelective
                                                            : Recompute::kNone;
  Memory memory(Device{});
  Stream stream(Device{});
  Arena scratch(memory, "scratch");
  ExecContext ctx{stream, memory, scratch, options.threads};
  const auto self = make_self_communicator();
  const ParallelContext parallel{*self, *self, *self};
  PolicyModel model(ModelConfig::parse(kConfig, "bench"), parallel, DType::kF32, memory,
                    WithGradients::kYes);
  model.initialize(ctx, 1);
  const auto parameters = model.parameters();
  AdamW adamw({}, parameters, memory);

  struct Side {
    const char* name;
    PackedBatch batch;
    double flops = 0;
    std::vector<double> seconds{}, passes{};
  };
  const GroupShape shape{options.prefix, options.response, options.group_size};
  const auto vocab_size = model.config().vocab_size;
  std::vector<Side> sides{{"grouped", packed_groups(shape, true, vocab_size)},
                          {"repeated", packed_groups(shape, false, vocab_size)}};
  for (Side& side : sides) {
    side.flops = executed_flops(model.config(), work_of(side.batch));
    timed_step(ctx, model, adamw, side.batch, recompute);  // memory settles
  }
  SgemmRate sgemm(options.threads);
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Side& side : sides) {
      sgemm.sample();
      const StepTime time = timed_step(ctx, model, adamw, side.batch, recompute);
      side.seconds.push_back(time.seconds);
      side.passes.push_back(time.phases.forward + time.phases.backward);
    }
  }
  sgemm.sample();

  fmt::print("SmolLM2-135M shapes, f32, {} threads, P={} R={} G={}, recompute {}, medians of {}\n",
             options.threads, options.prefix, options.response, options.group_size,
             options.recompute, options.repetitions);
  fmt::print("sgemm: median {:.1f}, highest {:.1f} GFLOP/s\n", sgemm.rate() / 1e9,
             sgemm.highest() / 1e9);
  for (const Side& side : sides) {
    const double seconds = median(side.seconds);
    const double rate = side.flops / seconds;
    fmt::print(
        "{:<9} {:6} rows  step {:7.3f} s  forward+backward {:7.3f} s  {:6.1f} GFLOP/s  "
        "{:5.1f} % of sgemm\n",
        side.name, side.batch.rows(), seconds, median(side.passes), rate / 1e9,
        100 * rate / sgemm.rate());
  }
  const double bound = sides[1].flops / sides[0].flops;
  fmt::print("repeated / grouped: step {:.3f}, forward+backward {:.3f}; bound by FLOPs {:.3f}\n",
             median(sides[1].seconds) / median(sides[0].seconds),
             median(sides[1].passes) / median(sides[0].passes), bound);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("peak of our buffers {:.3f} GiB, resident (with the sgemm operands) {:.3f} GiB\n",
             static_cast<double>(memory.peak_bytes()) / (1 << 30),
             static_cast<double>(usage.ru_maxrss) / (1 << 20));
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  coppice::bench::Options options;
  CLI::App app("Times one GRPO step, grouped and repeated, against sgemm.");
  app.add_option("--prefix", options.prefix, "prompt tokens")->capture_default_str();
  app.add_option("--response", options.response, "tokens of each response")->capture_default_str();
  app.add_option("--group-size", options.group_size, "responses")->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "timed steps of each")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads")->capture_default_str();
  app.add_option("--recompute", options.recompute, "NONE, SELECTIVE or BLOCK")
      ->check(CLI::IsMember({"NONE", "SELECTIVE", "BLOCK"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  coppice::bench::run(options);
  return 0;
}
