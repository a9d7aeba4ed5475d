#include "device/step_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace coppice::bench {
namespace {

using nlohmann::json;

// One packing at one depth.
struct Measured {
  StepSeconds seconds;
  double flops = 0;
  double step() const { return seconds.pass + seconds.update; }
};

class Runner {
 public:
  Runner(const StepWorkload& workload, const BenchOptions& options, Report& report)
      : workload_(workload), options_(options), report_(report) {}

  void run() {
    for (const auto depth : workload_.depths) run_depth(depth);
    if (workload_.full_depth != workload_.depths.back()) extrapolate();
  }

 private:
  // Micro-batches of the repeated packing.
  std::int64_t microbatches() const { return workload_.sequences / workload_.repeated_sequences; }
  GroupShape repeated_groups(std::int64_t group_size) const {
    if (microbatches() == 1) return groups(group_size);
    return {workload_.prefix, workload_.response, workload_.repeated_sequences};
  }
  GroupShape groups(std::int64_t group_size) const {
    return {workload_.prefix, workload_.response, group_size, workload_.sequences / group_size};
  }
  std::string name(std::int64_t depth, const std::string& rest) const {
    return fmt::format("{}/{}_{}_layers/{}", workload_.name, workload_.shape.name, depth, rest);
  }

  void run_depth(std::int64_t depth) {
    const auto config = workload_.shape.config(depth);
    const auto vocab = config.vocab_size;
    const auto repeated =
        packed_groups(repeated_groups(workload_.group_sizes.back()), false, vocab);
    // Both packings and both depths recompute alike.
    const auto most = packed_groups(groups(workload_.group_sizes.front()), true, vocab);
    const auto recompute = recompute_that_fits(workload_.shape.config(workload_.depths.back()),
                                               options_.memory_bytes, {&repeated, &most});
    std::unique_ptr<TrainedModel> model;
    report_.run(name(depth, "model"), [&] {
      model = std::make_unique<TrainedModel>(config);
      const auto count = parameter_count(config);
      return json{
          {"parameters", count},
          {"text", fmt::format("{:.2f} billion parameters", 1e-9 * static_cast<double>(count))}};
    });
    if (!model) return;
    measure(*model, depth, 0, repeated, recompute);
    for (const auto group_size : workload_.group_sizes) {
      const auto shape = groups(group_size);
      const auto grouped = packed_groups(shape, true, vocab);
      report_.run(name(depth, fmt::format("g{}_against_repeated", group_size)), [&] {
        const auto expected =
            model->logprobs(packed_groups(repeated_groups(group_size), false, vocab));
        auto found = model->logprobs(grouped);
        if (microbatches() > 1) found.resize(expected.size());  // those of the first sequences
        const auto apart = check_apart(config, found, expected);
        return json{{"rms", apart.rms},
                    {"most", apart.most},
                    {"bound", apart.bound},
                    {"text", fmt::format("log-probs {:.2g} apart (bound {:.2g}), {:.2g} at most",
                                         apart.rms, apart.bound, apart.most)}};
      });
      measure(*model, depth, group_size, grouped, recompute);
    }
  }

  // `group_size` 0: repeated.
  void measure(TrainedModel& model, std::int64_t depth, std::int64_t group_size,
               const PackedBatch& batch, Recompute recompute) {
    const auto packing = group_size == 0 ? std::string("repeated") : fmt::format("g{}", group_size);
    report_.run(name(depth, packing), [&] {
      Measured measured{model.time(batch, recompute, options_.sample),
                        executed_flops(model.config(), work_of(batch))};
      const auto passes = group_size == 0 ? microbatches() : 1;
      measured.seconds.pass *= static_cast<double>(passes);
      measured.flops *= static_cast<double>(passes);
      measured_[{depth, group_size}] = measured;
      auto result = told(measured, depth, group_size);
      if (passes > 1) {
        result["passes"] = fmt::format("one of {} equal micro-batches timed", passes);
        result["text"] = fmt::format("{}  (one of {} equal micro-batches timed)",
                                     result.at("text").get<std::string>(), passes);
      }
      result["recompute"] = name_of(recompute);
      result["pass_seconds"] = measured.seconds.pass;
      result["update_seconds"] = measured.seconds.update;
      result["peak_bytes"] = model.peak_bytes();
      return result;
    });
  }

  json told(const Measured& measured, std::int64_t depth, std::int64_t group_size) const {
    const auto rows = rows_of(group_size);
    const double rate = measured.flops / measured.step();
    const auto tokens =
        static_cast<double>(workload_.sequences * (workload_.prefix + workload_.response));
    json result{{"prefix", workload_.prefix},
                {"response", workload_.response},
                {"sequences", workload_.sequences},
                {"rows", rows},
                {"layers", depth},
                {"group_size", group_size},
                {"step_seconds", measured.step()},
                {"executed_flops", measured.flops},
                {"tflops", rate / 1e12},
                {"mfu", options_.share_of_peak(rate)},
                {"logical_tokens_per_second", tokens / measured.step()}};
    std::string faster;
    if (group_size > 0 && measured_.count({depth, 0}) > 0) {
      const auto& repeated = measured_.at({depth, 0});
      result["speedup"] = repeated.step() / measured.step();
      result["speedup_bound"] = repeated.flops / measured.flops;
      faster = fmt::format("  {:.2f} times repeated (FLOPs allow {:.2f})",
                           repeated.step() / measured.step(), repeated.flops / measured.flops);
    }
    result["text"] =
        fmt::format("{:6} rows  step {:8.1f} ms  {:6.1f} TFLOP/s{}{}", rows, 1e3 * measured.step(),
                    rate / 1e12, options_.peak_text(rate), faster);
    return result;
  }

  // The full model: what two depths take, along a line. Head, embedding and their update are in
  // both.
  void extrapolate() {
    const auto low = workload_.depths.front(), high = workload_.depths.back();
    auto sizes = workload_.group_sizes;
    sizes.insert(sizes.begin(), 0);
    for (const auto group_size : sizes) {
      if (measured_.count({low, group_size}) == 0 || measured_.count({high, group_size}) == 0)
        continue;
      const auto packing =
          group_size == 0 ? std::string("repeated") : fmt::format("g{}", group_size);
      report_.run(name(workload_.full_depth, packing + "_extrapolated"), [&] {
        const auto &a = measured_.at({low, group_size}), &b = measured_.at({high, group_size});
        const double layers =
            static_cast<double>(workload_.full_depth - low) / static_cast<double>(high - low);
        const auto line = [&](double at_low, double at_high) {
          return at_low + (at_high - at_low) * layers;
        };
        const Measured full{
            {line(a.seconds.pass, b.seconds.pass), line(a.seconds.update, b.seconds.update)},
            line(a.flops, b.flops)};
        measured_[{workload_.full_depth, group_size}] = full;
        auto result = told(full, workload_.full_depth, group_size);
        result["extrapolated"] = fmt::format("linearly from {} and {} layers", low, high);
        result["text"] = fmt::format("{}  (EXTRAPOLATED linearly from {} and {} layers)",
                                     result.at("text").get<std::string>(), low, high);
        return result;
      });
    }
  }
  std::int64_t rows_of(std::int64_t group_size) const {
    const auto prompts = group_size == 0 ? workload_.sequences : workload_.sequences / group_size;
    return prompts * workload_.prefix + workload_.sequences * workload_.response;
  }

  const StepWorkload& workload_;
  const BenchOptions& options_;
  Report& report_;
  std::map<std::pair<std::int64_t, std::int64_t>, Measured> measured_;  // by depth, group size
};

}  // namespace

void step_bench(const StepWorkload& workload, const BenchOptions& options, Report& report) {
  Runner(workload, options, report).run();
}

}  // namespace coppice::bench
