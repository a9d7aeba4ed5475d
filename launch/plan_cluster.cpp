#include "launch/plan_cluster.hpp"

#include <fmt/format.h>

#include "core/build_config.hpp"
#include "launch/device_choice.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownGrids = 10;

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "NONE";
    case Recompute::kSelective:
      return "SELECTIVE";
    case Recompute::kBlock:
      break;
  }
  return "BLOCK";
}

bool needs_link_between(const ClusterProfile& cluster, std::int64_t ranks) {
  return ranks > cluster.ranks_per_node && cluster.between_nodes.bandwidth == 0;
}

void check_fits_cluster(const ClusterProfile& cluster, std::int64_t ranks, const RunConfig& config,
                        const ModelConfig& model) {
  Problems problems;
  problems.add_all(device_problems(model, cluster.kind));
  if (ranks < 1 || ranks > 1 << 20)
    problems.add("--ranks {}: not in [1, {}]. Give a number of ranks that there may be.", ranks,
                 1 << 20);
  for (const std::int64_t wanted : {ranks, std::int64_t{config.grid.ranks()}})
    if (needs_link_between(cluster, wanted)) {
      problems.add(
          "{} ranks are more than the {} of a node of \"{}\", and it has no between_nodes (what "
          "links between nodes do is not known). Add it to the cluster's file, or plan for fewer.",
          wanted, cluster.ranks_per_node, cluster.name);
      break;
    }
  problems.throw_if_any<ConfigError>();
}

Json seconds_of(const StepPrediction& step) {
  return {{"forward", step.forward_seconds},
          {"backward", step.backward_seconds},
          {"reduce", step.reduce_seconds},
          {"optimizer", step.optimizer_seconds}};
}

Json axes_of(const StepPrediction& step) {
  Json axes = Json::object();
  for (const AxisPrediction& axis : step.axes)
    axes[std::string(name_of(axis.axis))] = {
        {"bytes", axis.bytes}, {"seconds", axis.seconds}, {"waited_seconds", axis.waited_seconds}};
  return axes;
}

double gib(double bytes) { return bytes / (1 << 30); }

std::string grid_name(const GridSizes& grid) {
  return fmt::format("{} x {} x {}", grid.tensor, grid.context, grid.data);
}

}  // namespace

ClusterPlan plan_on_cluster(const ClusterProfile& cluster, std::int64_t ranks,
                            const RunConfig& config, RunData& data) {
  const ModelConfig& model = data.model.config;
  ClusterPlan plan{.cluster = cluster, .ranks = ranks == 0 ? cluster.ranks() : ranks};
  check_fits_cluster(cluster, plan.ranks, config, model);
  const SourcePosition position = data.source.position();
  const StepBatch batch(data.source.take(config.trainer.groups_per_step), config.trainer.loss,
                        config.trainer.advantage);
  data.source.set_position(position);
  plan.prediction = predict_step(config, model, batch, cluster);
  RunConfig repeated = config;
  repeated.trainer.batching.sharing = Sharing::kRepeated;
  plan.repeated_seconds = predict_step(repeated, model, batch, cluster).step_seconds;
  plan.grids = search_grids(config, model, batch, cluster, plan.ranks);
  return plan;
}

Json json_of(const ClusterPlan& plan, std::int64_t peak_memory_bytes) {
  const StepPrediction& step = plan.prediction;
  const ComputeSeconds& compute = step.compute;
  Json grids = Json::array();
  for (const GridChoice& choice : plan.grids)
    grids.push_back({{"tensor", choice.grid.tensor},
                     {"context", choice.grid.context},
                     {"data", choice.grid.data},
                     {"recompute", name_of(choice.recompute)},
                     {"fits", choice.fits},
                     {"peak_memory_bytes", choice.memory.total()},
                     {"step_seconds", choice.prediction.step_seconds},
                     {"mfu", choice.prediction.mfu}});
  return {{"name", plan.cluster.name},
          {"origin", plan.cluster.measured ? "MEASURED" : "DATA_SHEET"},
          {"note", plan.cluster.note},
          {"ranks", plan.ranks},
          {"usable_memory_bytes", plan.cluster.usable_bytes()},
          {"fits", static_cast<double>(peak_memory_bytes) <= plan.cluster.usable_bytes()},
          {"step_seconds", step.step_seconds},
          {"repeated_step_seconds", plan.repeated_seconds},
          {"mfu", step.mfu},
          {"seconds", seconds_of(step)},
          {"compute",
           {{"gemm", compute.gemm},
            {"attention", compute.attention},
            {"head", compute.head},
            {"memory_ops", compute.memory_ops},
            {"optimizer", compute.optimizer}}},
          {"axes", axes_of(step)},
          {"grids", grids}};
}

void print_text(const ClusterPlan& plan, std::int64_t peak_memory_bytes) {
  const StepPrediction& step = plan.prediction;
  const ClusterProfile& cluster = plan.cluster;
  fmt::print("\nstep 1 on {}, predicted ({})\n", cluster.name,
             cluster.measured ? "from rates measured there"
                              : "from data sheets and assumed rates: nothing was measured");
  fmt::print("  step {:.4g} s: forward {:.4g}, backward {:.4g}, reduce {:.4g}, optimizer {:.4g}\n",
             step.step_seconds, step.forward_seconds, step.backward_seconds, step.reduce_seconds,
             step.optimizer_seconds);
  const ComputeSeconds& compute = step.compute;
  fmt::print(
      "  compute: linears {:.4g} s, attention {:.4g}, head {:.4g}, memory-bound ops {:.4g}, "
      "optimizer {:.4g}\n",
      compute.gemm, compute.attention, compute.head, compute.memory_ops, compute.optimizer);
  for (const AxisPrediction& axis : step.axes)
    fmt::print("  {} axis: {:.4g} s in collectives, {:.4g} s of them waited for\n",
               name_of(axis.axis), axis.seconds, axis.waited_seconds);
  fmt::print("  MFU {:.1f} %; every prompt repeated: {:.4g} s, {:.2f} times as long\n",
             100 * step.mfu, plan.repeated_seconds, plan.repeated_seconds / step.step_seconds);
  fmt::print(
      "  memory: {:.2f} of {:.2f} GiB of a rank{}\n", gib(static_cast<double>(peak_memory_bytes)),
      gib(cluster.usable_bytes()),
      static_cast<double>(peak_memory_bytes) > cluster.usable_bytes() ? ": does not fit" : "");
  if (cluster.kind == DeviceKind::kCuda && !build::kWithCuda)
    fmt::print("  (scratch as the CPU's kernels need it: this build has none of CUDA)\n");
  fmt::print("\ngrids of {} ranks, fastest first\n{:>22}{:>11}{:>12}{:>8}{:>12}\n", plan.ranks,
             "tensor, context, data", "recompute", "step s", "MFU %", "GiB a rank");
  for (std::size_t i = 0; i < plan.grids.size() && i < kShownGrids; ++i) {
    const GridChoice& choice = plan.grids[i];
    fmt::print("{:>22}{:>11}{:>12.4g}{:>8.1f}{:>12.2f}{}\n", grid_name(choice.grid),
               name_of(choice.recompute), choice.prediction.step_seconds,
               100 * choice.prediction.mfu, gib(static_cast<double>(choice.memory.total())),
               choice.fits ? "" : "  does not fit");
  }
  if (plan.grids.size() > kShownGrids)
    fmt::print("{:>22}  {} more (all of them with --json)\n", "...",
               plan.grids.size() - kShownGrids);
}

std::string cluster_keys_help() {
  return "  cluster            with --cluster only; of the run's first step:\n"
         "    name, origin, note     as in the cluster's file\n"
         "    ranks            that the search is over\n"
         "    usable_memory_bytes, fits   of a rank, and whether peak_memory_bytes is within it\n"
         "    step_seconds     predicted, on the config's grid\n"
         "    repeated_step_seconds   the same with every prompt repeated\n"
         "    mfu              executed_flops over what all ranks could do at their peak\n"
         "    seconds          forward, backward, reduce, optimizer, as the metrics cut a step\n"
         "    compute          seconds in gemm (linears), attention, head, memory_ops, optimizer\n"
         "    axes             by axis: bytes that the slowest rank sends, seconds in "
         "collectives,\n"
         "                     waited_seconds not hidden by compute\n"
         "    grids            every grid of that many ranks, those that fit first, the fastest\n"
         "                     first: tensor, context, data, recompute (the first that fits), "
         "fits,\n"
         "                     peak_memory_bytes, step_seconds, mfu";
}

}  // namespace coppice
