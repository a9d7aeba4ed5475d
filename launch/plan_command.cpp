#include "launch/plan_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/small_file.hpp"
#include "core/build_config.hpp"
#include "launch/device_choice.hpp"
#include "launch/plan_cluster.hpp"
#include "launch/run_data.hpp"
#include "launch/run_plan.hpp"
#include "model/flops.hpp"

namespace coppice {
namespace {

struct PlanOptions {
  std::string config;
  std::vector<std::string> set;
  std::string hf_config, cluster;
  std::int64_t ranks = 0;
  bool json = false;
};

using Json = nlohmann::ordered_json;

std::string device_name(const RunConfig& config) {
  if (config.device == DeviceKind::kCpu) return "cpu";
  return build::kEmulatedDevice ? "cuda (emulated)" : "cuda";
}

constexpr std::array kAxes = {GridAxis::kTensor, GridAxis::kContext, GridAxis::kReplicas,
                              GridAxis::kSharedKeyValue, GridAxis::kWorld};
constexpr std::array kCollectives = {Collective::kAllReduce, Collective::kAllGather,
                                     Collective::kReduceScatter, Collective::kBroadcast};

// {"tensor": {"all_reduce": {"calls": 1, "bytes": 8}}}: what is used.
Json json_of(const PlannedTraffic& traffic) {
  Json axes = Json::object();
  for (const GridAxis axis : kAxes)
    for (const Collective collective : kCollectives) {
      const auto& [calls, bytes] = traffic.at(axis, collective);
      if (calls > 0)
        axes[std::string(name_of(axis))][std::string(name_of(collective))] = {{"calls", calls},
                                                                              {"bytes", bytes}};
    }
  return axes;
}

Json json_of(const std::vector<RankWork>& ranks) {
  Json list = Json::array();
  for (const RankWork& rank : ranks)
    list.push_back({{"data", rank.dp_rank},
                    {"context", rank.cp_rank},
                    {"rows", rank.work.rows},
                    {"visible_pairs", rank.work.visible_pairs},
                    {"edge_rows", rank.work.edge_rows},
                    {"alignment_rows", rank.alignment_rows}});
  return list;
}

Json json_of(const PlannedStep& step) {
  Json json = {{"step", step.step},
               {"groups", step.groups},
               {"responses", step.responses},
               {"loss_tokens", step.loss_tokens},
               {"microbatches", step.microbatches},
               {"rows", step.work.rows},
               {"logical_rows", step.logical_rows},
               {"alignment_rows", step.alignment_rows},
               {"visible_pairs", step.work.visible_pairs},
               {"edge_rows", step.work.edge_rows},
               {"executed_flops", step.executed_flops},
               {"fallbacks", step.fallbacks},
               {"imbalance", step.imbalance},
               {"ranks", json_of(step.ranks)},
               {"communication", json_of(step.traffic)},
               {"communication_bytes", step.traffic.bytes()}};
  if (!step.sharing.empty()) json["sharing"] = step.sharing;  // none where no row runs
  return json;
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
          {"device", device_name(config)},
          {"precision", name_of(config.precision)},
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
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.{}f} {}", size, unit < 2 ? 1 : 2, kUnits[unit]);
}

void print_row(const std::string& name, const PlannedStep& step) {
  fmt::print("{:>6}{:>8}{:>15}{:>10}{:>14}{:>15}{:>11}{:>12.4g}  {}\n", name, step.groups,
             step.microbatches, step.work.rows, step.logical_rows, step.work.visible_pairs,
             step.work.edge_rows, step.executed_flops / 1e12, step.sharing);
}

// Rows and pairs of each rank, all steps together; then what goes over each axis.
void print_ranks(const RunConfig& config, const PlannedStep& total) {
  fmt::print("\n{:>6}{:>9}{:>12}{:>16}{:>16}{:>12}\n", "data", "context", "rows", "alignment rows",
             "visible pairs", "edge rows");
  constexpr std::size_t kShown = 32;
  for (std::size_t i = 0; i < total.ranks.size() && i < kShown; ++i) {
    const RankWork& rank = total.ranks[i];
    fmt::print("{:>6}{:>9}{:>12}{:>16}{:>16}{:>12}\n", rank.dp_rank, rank.cp_rank, rank.work.rows,
               rank.alignment_rows, rank.work.visible_pairs, rank.work.edge_rows);
  }
  if (total.ranks.size() > kShown)
    fmt::print("{:>6}  {} more (all of them with --json)\n", "...", total.ranks.size() - kShown);
  if (config.grid.tensor > 1)
    fmt::print("each of these runs on {} tensor ranks\n", config.grid.tensor);
  fmt::print("predicted imbalance: the slowest rank takes {:.2f} times the mean\n",
             total.imbalance);

  fmt::print("\nsent by all ranks in a step, on average\n");
  const auto steps = std::max<std::int64_t>(1, total.step);
  for (const GridAxis axis : kAxes)
    for (const Collective collective : kCollectives) {
      const auto& [calls, bytes] = total.traffic.at(axis, collective);
      if (calls > 0)
        fmt::print("  {:<17}{:<15}{:>10} calls{:>14}\n", name_of(axis), name_of(collective),
                   calls / steps, readable_bytes(bytes / steps));
    }
}

void print_text(const RunConfig& config, const RunData& data, const RunPlan& plan) {
  fmt::print("model    {} parameters in {}\n", parameter_count(data.model.config),
             name_of(config.precision));
  fmt::print("device   {}, {} threads\n", device_name(config), config.threads_per_rank);
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
  if (config.grid.ranks() > 1) print_ranks(config, plan.total);
  fmt::print("\nmemory at the peak{}\n", config.grid.ranks() > 1 ? " of the fullest rank" : "");
  for (const auto& line : plan.memory.lines)
    fmt::print("  {:<14}{:>12}\n", line.name, readable_bytes(line.bytes));
  fmt::print("  {:<14}{:>12}\n", "total", readable_bytes(plan.memory.total()));
  fmt::print("\nspeed-up over repeating every prompt, predicted from the work: {:.2f}\n",
             plan.predicted_speedup);
}

// What plan is told, once all of it has been read.
struct Told {
  std::optional<ClusterProfile> cluster;
  std::optional<ModelConfig> shape;
  std::optional<RunConfig> config;  // of a run on the cluster, where there is one
};

// Every file is read whatever is wrong with another.
Told read(const PlanOptions& options, const Job& job) {
  Told told;
  auto& [cluster, shape, config] = told;
  Problems problems;
  const auto collect = [&](const auto& load) {
    try {
      load();
    } catch (const InputError& error) {
      problems.add_all(error.problems());
    }
  };
  std::vector<std::string> set = options.set;
  if (!options.hf_config.empty())
    collect([&] {
      shape = ModelConfig::parse(read_small_file(options.hf_config), options.hf_config);
      set.insert(set.end(), {"model.hf=", "model.checkpoint=" + options.hf_config});
    });
  collect(
      [&] { config = load_run_config(options.config, set, RunConfigUse::kPlan, size_of(job)); });
  if (!options.cluster.empty()) collect([&] { cluster = load_cluster(options.cluster); });
  if (options.cluster.empty() && options.ranks != 0)
    problems.add("--ranks {}: says what --cluster searches. Give --cluster too.", options.ranks);
  if (config && cluster && config->precision == DType::kF64)
    problems.add("numerics.precision = F64: the rates of \"{}\" are not those of f64. Use {}.",
                 cluster->name, cluster->kind == DeviceKind::kCpu ? "F32" : "BF16");
  problems.throw_if_any<ConfigError>();
  if (cluster) move_to(*cluster, *config);
  return told;
}

void plan(const PlanOptions& options, Job& job) {
  Told told = read(options, job);
  const auto& cluster = told.cluster;
  const RunConfig& config = *told.config;
  RunData data = open_run_data(config, job, {}, std::move(told.shape));
  std::optional<ClusterPlan> on_cluster;
  if (cluster) on_cluster = plan_on_cluster(*cluster, options.ranks, config, data);
  const RunPlan plan = plan_run(config, data.model.config, data.source);
  if (options.json) {
    Json json = json_of(config, data, plan);
    if (on_cluster) json["cluster"] = json_of(*on_cluster, plan.memory.total());
    fmt::print("{}\n", json.dump(2));
    return;
  }
  print_text(config, data, plan);
  if (on_cluster) print_text(*on_cluster, plan.memory.total());
}

}  // namespace

void add_plan_command(Commands& commands) {
  auto options = std::make_shared<PlanOptions>();
  commands
      .add("plan",
           "What a training run would do and need: grid, micro-batches, memory, FLOPs, predicted "
           "speed-up; trains nothing",
           {.body = [options](Job& job) { plan(*options, job); }})
      .option("--config", options->config, "run config (.textproto)", Need::kRequired)
      .list("--set", options->set,
            "FIELD=VALUE, as if given at the end of the config; may be given several times")
      .option("--hf-config", options->hf_config,
              "a Hugging Face config.json whose shapes are planned in place of the run's model, "
              "which then need not be there")
      .option("--cluster", options->cluster,
              "cluster (.textproto, as in configs/clusters/) to predict the first step's time on, "
              "and every grid's; the run's device and precision are then the cluster's")
      .option("--ranks", options->ranks,
              "ranks whose grids --cluster compares (default: all of the cluster)")
      .flag("--json", options->json, "print one JSON object instead of text")
      .footer(
          std::string(
              "Keys of --json:\n"
              "  grid               tensor, context, data: ranks of each axis\n"
              "  device             cpu, cuda or cuda (emulated)\n"
              "  precision          f32, f64 or bf16\n"
              "  threads_per_rank\n"
              "  parameters         elements of all weights\n"
              "  file_groups        groups in the rollouts file\n"
              "  total              over the run: steps and the keys of a step but `step`\n"
              "  predicted_speedup  FLOPs with every prompt repeated over those of the plan\n"
              "  memory             bytes at the peak of the fullest rank, by name\n"
              "  peak_memory_bytes  their sum\n"
              "  steps              one object per step: step, groups, responses, loss_tokens,\n"
              "                     microbatches, rows, logical_rows, alignment_rows, "
              "visible_pairs,\n"
              "                     edge_rows, executed_flops, fallbacks, sharing,\n"
              "                     communication_bytes, as in metrics.jsonl (fallbacks: of this "
              "step\n"
              "                     alone), and\n"
              "    imbalance        predicted time of the slowest rank over the mean\n"
              "    ranks            one object per data and context rank: data, context, rows,\n"
              "                     visible_pairs, edge_rows, alignment_rows (tensor ranks run "
              "the\n"
              "                     same rows); empty where the step is skipped\n"
              "    communication    by axis (tensor, context, replicas, shared_key_value, world) "
              "and\n"
              "                     collective (all_reduce, all_gather, reduce_scatter): calls of "
              "a\n"
              "                     rank, the most over ranks, and bytes, the payload of all "
              "ranks\n") +
          cluster_keys_help());
}

}  // namespace coppice
