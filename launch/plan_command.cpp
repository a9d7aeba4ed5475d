#include "launch/plan_command.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "launch/run_plan.hpp"
#include "model/flops.hpp"

namespace coppice {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> set;
  bool json = false;
};

using Json = nlohmann::ordered_json;

Json json_of(const PlannedStep& step) {
  return {{"step", step.step},
          {"groups", step.groups},
          {"responses", step.responses},
          {"loss_tokens", step.loss_tokens},
          {"microbatches", step.microbatches},
          {"rows", step.work.rows},
          {"logical_rows", step.logical_rows},
          {"visible_pairs", step.work.visible_pairs},
          {"edge_rows", step.work.edge_rows},
          {"executed_flops", step.executed_flops},
          {"fallbacks", step.fallbacks},
          {"sharing", step.sharing}};
}

Json json_of(const RunConfig& config, const RunData& data, const RunPlan& plan) {
  Json memory = Json::object(), steps = Json::array();
  for (const auto& line : plan.memory.lines) memory[line.name] = line.bytes;
  for (const auto& step : plan.steps) steps.push_back(json_of(step));
  Json total = json_of(plan.total);
  total["steps"] = plan.total.step;
  total.erase("step");
  return {{"grid",
           {{"tensor", config.grid.tensor},
            {"context", config.grid.context},
            {"data", config.grid.data}}},
          {"threads_per_rank", config.threads_per_rank},
          {"parameters", parameter_count(data.model.config)},
          {"file_groups", std::ssize(data.source.groups())},
          {"total", total},
          {"predicted_speedup", plan.predicted_speedup},
          {"memory", memory},
          {"peak_memory_bytes", plan.memory.total()},
          {"steps", steps}};
}

std::string readable_bytes(std::int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const double size = static_cast<double>(bytes);
  return size < 1024 * kMiB ? fmt::format("{:.1f} MiB", size / kMiB)
                            : fmt::format("{:.2f} GiB", size / kMiB / 1024);
}

void print_row(const std::string& name, const PlannedStep& step) {
  fmt::print("{:>6}{:>8}{:>15}{:>10}{:>14}{:>15}{:>11}{:>12.4g}  {}\n", name, step.groups,
             step.microbatches, step.work.rows, step.logical_rows, step.work.visible_pairs,
             step.work.edge_rows, step.executed_flops / 1e12, step.sharing);
}

void print_text(const RunConfig& config, const RunData& data, const RunPlan& plan) {
  fmt::print("model    {} parameters in {}, {} threads\n", parameter_count(data.model.config),
             name_of(config.precision), config.threads_per_rank);
  fmt::print("grid     tensor {} x context {} x data {}\n", config.grid.tensor, config.grid.context,
             config.grid.data);
  fmt::print("data     {} groups in the file, {} steps\n\n", data.source.groups().size(),
             plan.total.step);
  fmt::print("{:>6}{:>8}{:>15}{:>10}{:>14}{:>15}{:>11}{:>12}  {}\n", "step", "groups",
             "micro-batches", "rows", "logical rows", "visible pairs", "edge rows", "TFLOP",
             "sharing");
  constexpr std::size_t kShown = 12;
  for (std::size_t i = 0; i < plan.steps.size() && i < kShown; ++i)
    print_row(std::to_string(plan.steps[i].step), plan.steps[i]);
  if (plan.steps.size() > kShown)
    fmt::print("{:>6}  {} more steps (all of them with --json)\n", "...",
               plan.steps.size() - kShown);
  print_row("all", plan.total);
  if (plan.total.fallbacks > 0)
    fmt::print(
        "{} groups run as several grouped parts: they do not fit "
        "batching.max_rows_per_microbatch\n",
        plan.total.fallbacks);
  fmt::print("\nmemory at the peak\n");
  for (const auto& line : plan.memory.lines)
    fmt::print("  {:<14}{:>12}\n", line.name, readable_bytes(line.bytes));
  fmt::print("  {:<14}{:>12}\n", "total", readable_bytes(plan.memory.total()));
  fmt::print("\nspeed-up over repeating every prompt, predicted from the work: {:.2f}\n",
             plan.predicted_speedup);
}

void plan(const Options& options, Job& job) {
  const RunConfig config = load_run_config(options.config, options.set, RunConfigUse::kPlan);
  RunData data = open_run_data(config, job);
  const RunPlan plan = plan_run(config, data);
  if (options.json)
    fmt::print("{}\n", json_of(config, data, plan).dump(2));
  else
    print_text(config, data, plan);
}

}  // namespace

void add_plan_command(Commands& commands) {
  auto options = std::make_shared<Options>();
  commands
      .add("plan",
           "What a training run would do and need: grid, micro-batches, memory, FLOPs, predicted "
           "speed-up; trains nothing",
           {.body = [options](Job& job) { plan(*options, job); }})
      .option("--config", options->config, "run config (.textproto)", Need::kRequired)
      .list("--set", options->set,
            "FIELD=VALUE, as if given at the end of the config; may be given several times")
      .flag("--json", options->json, "print one JSON object instead of text")
      .footer(
          "Keys of --json:\n"
          "  grid               tensor, context, data: ranks of each axis\n"
          "  threads_per_rank\n"
          "  parameters         elements of all weights\n"
          "  file_groups        groups in the rollouts file\n"
          "  total              sums over the run: steps and the keys of a step but `step`\n"
          "  predicted_speedup  FLOPs with every prompt repeated over those of the plan\n"
          "  memory             bytes at the peak, by name\n"
          "  peak_memory_bytes  their sum\n"
          "  steps              one object per step: step, groups, responses, loss_tokens,\n"
          "                     microbatches, rows, logical_rows, visible_pairs, edge_rows,\n"
          "                     executed_flops, fallbacks, sharing, as in\n"
          "                     metrics.jsonl (fallbacks: of this step alone)");
}

}  // namespace coppice
