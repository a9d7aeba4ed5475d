// The workload of DualKV's paper (arXiv:2605.15422): Qwen3-8B, 32 rollouts of 2K behind a prompt of
// 8K, and its kernel figures, 28 rollouts behind prompts of 16K and 32K. The paper's kernel figures
// do not name the response's length; it is 2K here.
#include <fmt/format.h>

#include "device/attention_problem.hpp"
#include "device/step_bench.hpp"

namespace coppice::bench {
namespace {

// `calls` of the repeated packing have the same shape; one is timed for all of them.
struct KernelCase {
  std::int64_t prefix, response, group_size, calls, heads, kv_heads, dim;
};

void kernels(const KernelCase& c, const BenchOptions& options, Report& report) {
  report.run(
      fmt::format("dualkv/kernel_{}_responses_of_{}_behind_{}", c.group_size, c.response, c.prefix),
      [&] {
        const auto seconds = [&](const AttentionShape& shape) {
          DeviceRun run;
          AttentionProblem problem(run, shape);
          problem.check();
          return median_seconds(
              run, [&] { problem.forward(), problem.backward(); }, options.sample);
        };
        const double grouped =
            seconds({c.prefix, c.response, c.group_size, 1, c.heads, c.kv_heads, c.dim});
        const double repeated = static_cast<double>(c.calls) *
                                seconds({c.prefix + c.response, 0, 0, c.group_size / c.calls,
                                         c.heads, c.kv_heads, c.dim});
        return nlohmann::json{
            {"prefix", c.prefix},
            {"response", c.response},
            {"group_size", c.group_size},
            {"grouped_seconds", grouped},
            {"repeated_seconds", repeated},
            {"repeated_calls", c.calls},
            {"speedup", repeated / grouped},
            {"text", fmt::format("forward and backward {:.1f} ms, repeated {:.1f} ms (one of {} "
                                 "equal calls timed): {:.2f} times faster",
                                 1e3 * grouped, 1e3 * repeated, c.calls, repeated / grouped)}};
      });
}

}  // namespace

void dualkv_bench(const BenchOptions& options, Report& report) {
  if (options.tiny) {
    const ModelShape shape{"tiny_qwen3", "Qwen3", 128, 192, 2, 1, 64, 151};
    step_bench({"dualkv", shape, {1, 2}, 4, 20, 5, 4, {4}, 2}, options, report);
    return kernels({40, 9, 4, 2, 2, 1, 64}, options, report);
  }
  const ModelShape qwen3{"qwen3_8b", "Qwen3", 4096, 12288, 32, 8, 128, 151936};
  step_bench({"dualkv", qwen3, {4, 8}, 36, 8192, 2048, 32, {32}, 4}, options, report);
  kernels({16384, 2048, 28, 4, 32, 8, 128}, options, report);
  kernels({32768, 2048, 28, 4, 32, 8, 128}, options, report);
}

}  // namespace coppice::bench
