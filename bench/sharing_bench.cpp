// Where sharing a prefix pays and where it could cost: forward and backward of the same groups,
// grouped and repeated, from a prefix of one token to a long one, groups of one included, on a tiny
// model and on layers of SmolLM2's shapes. The two packings run in turn and the best of each
// counts, because machines are shared; with one thread it is the processor's time that counts. What
// `sharing: AUTO` decides by is checked against it.
#include <omp.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "model/policy_model.hpp"
#include "rl/packing_cost.hpp"
#include "support/packed_groups.hpp"

namespace coppice::bench {
namespace {

constexpr const char* kTiny = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
  "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.02})";
constexpr const char* kSmollm2 = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2,
  "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 4096,
  "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
  "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.02})";

struct Options {
  std::string model = "tiny";
  int repetitions = 5, threads = omp_get_num_procs();
  std::int64_t rows = 1024;
  std::vector<std::int64_t> prefixes{1, 2, 4, 16, 64, 512}, responses{1, 8, 64, 512},
      group_sizes{1, 2, 8};
};

struct Side {
  PackedBatch batch;
  double flops = 0, best = 1e30;
};

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void pass(ExecContext& ctx, PolicyModel& model, Side& side) {
  std::vector<double> logprobs(side.batch.edges.size()), entropies(side.batch.edges.size());
  const auto coefficients = [&](std::int64_t, std::span<const double>, std::span<const double>,
                                std::span<double> c,
                                std::span<double>) { std::fill(c.begin(), c.end(), -1e-3); };
  const clockid_t clock = ctx.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const double start = seconds(clock);
  model.forward_backward(ctx, side.batch, Recompute::kNone, 1.0, coefficients, logprobs, entropies);
  side.best = std::min(side.best, seconds(clock) - start);
}

/// Repeated over grouped, as `sharing: AUTO` weighs them.
double predicted_ratio(const ModelConfig& config, const GroupShape& shape, const Side (&sides)[2]) {
  const PackingCost cost = packing_cost(config);
  const auto responses = shape.groups * shape.group_size;
  return sides[1].flops /
         (sides[0].flops + cost.of_seams(shape.groups + responses, responses * shape.response));
}

void run(const Options& options) {
  Memory memory(Device{});
  Stream stream(Device{});
  Arena scratch(memory, "scratch");
  ExecContext ctx{stream, memory, scratch, options.threads};
  const auto self = make_self_communicator();
  const ParallelContext parallel{*self, *self, *self};
  PolicyModel model(ModelConfig::parse(options.model == "tiny" ? kTiny : kSmollm2, options.model),
                    parallel, DType::kF32, memory, WithGradients::kYes);
  model.initialize(ctx, 1);
  model.zero_gradients(ctx);
  fmt::print("{} model, f32, {} threads, best of {}\n", options.model, options.threads,
             options.repetitions);
  fmt::print("{:>6}{:>6}{:>6}{:>8}{:>10}{:>12}{:>12}{:>9}{:>9}{:>11}{:>10}{:>8}\n", "P", "R", "G",
             "groups", "rows", "grouped s", "repeated s", "ratio", "FLOPs", "predicted", "AUTO",
             "loses");
  for (const auto prefix : options.prefixes)
    for (const auto response : options.responses)
      for (const auto group_size : options.group_sizes) {
        GroupShape shape{prefix, response, group_size};
        shape.groups = std::max<std::int64_t>(1, options.rows / (prefix + group_size * response));
        Side sides[2];
        for (Side& side : sides) {
          side.batch = packed_groups(shape, &side == sides, model.config().vocab_size);
          side.flops = executed_flops(model.config(), work_of(side.batch));
          pass(ctx, model, side);  // memory settles
          side.best = 1e30;
        }
        for (int i = 0; i < options.repetitions; ++i)
          for (Side& side : sides) pass(ctx, model, side);
        const double ratio = sides[1].best / sides[0].best;
        const double predicted = predicted_ratio(model.config(), shape, sides);
        const bool takes_grouped = predicted >= 1;
        const double loses = std::max(0.0, takes_grouped ? 1 / ratio - 1 : ratio - 1);
        fmt::print(
            "{:>6}{:>6}{:>6}{:>8}{:>10}{:>12.5f}{:>12.5f}{:>9.3f}{:>9.3f}{:>11.3f}{:>10}{:>6.1f} "
            "%\n",
            prefix, response, group_size, shape.groups, sides[0].batch.rows(), sides[0].best,
            sides[1].best, ratio, sides[1].flops / sides[0].flops, predicted,
            takes_grouped ? "GROUPED" : "REPEATED", 100 * loses);
      }
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  coppice::bench::Options options;
  CLI::App app("Times forward and backward of the same groups, grouped and repeated.");
  app.add_option("--model", options.model, "tiny, or smollm2 (two layers of its shapes)")
      ->check(CLI::IsMember({"tiny", "smollm2"}))
      ->capture_default_str();
  app.add_option("--rows", options.rows, "grouped rows of a micro-batch, about")
      ->capture_default_str();
  app.add_option("--prefixes", options.prefixes, "prompt tokens")->capture_default_str();
  app.add_option("--responses", options.responses, "tokens of each response")
      ->capture_default_str();
  app.add_option("--group-sizes", options.group_sizes, "responses")->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "passes of each")->capture_default_str();
  app.add_option("--threads", options.threads, "threads")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  coppice::bench::run(options);
  return 0;
}
