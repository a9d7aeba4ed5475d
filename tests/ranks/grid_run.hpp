#pragma once
// One training run of a tiny model on a process grid, and what it holds as logical tensors, to be
// compared with the run of one rank (rl/training_run.hpp).
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/copy.hpp"
#include "ranks/ranks_session.hpp"
#include "ranks/shared_directory.hpp"
#include "rl/training_run.hpp"

namespace coppice::test {

struct GridCase {
  GridSizes sizes;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  Zero zero = Zero::kOptimizer;
};
inline std::string name_of(const GridCase& c) {
  return fmt::format("tp {} cp {} dp {}{}{}", c.sizes.tensor, c.sizes.context, c.sizes.data,
                     c.sequence_parallel == SequenceParallel::kYes ? " sequence parallel" : "",
                     c.zero == Zero::kNone ? " zero NONE" : "");
}

/// Every grid of the session's ranks that the model's heads and widths allow.
inline std::vector<GridCase> grid_cases(const ModelConfig& model) {
  const int ranks = ranks_session().size();
  std::vector<GridCase> cases;
  for (int tp = 1; tp <= ranks; ++tp)
    for (int cp = 1; tp * cp <= ranks; ++cp) {
      const auto kv = static_cast<int>(model.num_key_value_heads);
      if (ranks % (tp * cp) != 0 || model.num_attention_heads % tp != 0 ||
          model.intermediate_size % tp != 0 || (kv % tp != 0 && tp % kv != 0))
        continue;
      for (const auto sp : {SequenceParallel::kNo, SequenceParallel::kYes}) {
        if (tp == 1 && sp == SequenceParallel::kYes) continue;
        // Both ways of holding moments, once each where replicas are the same.
        const bool plain = sp == SequenceParallel::kNo && ranks > tp;
        cases.push_back({{tp, cp, ranks / (tp * cp)}, sp, plain ? Zero::kNone : Zero::kOptimizer});
        if (plain) cases.push_back({{tp, cp, ranks / (tp * cp)}, sp, Zero::kOptimizer});
      }
    }
  return cases;
}

inline std::unique_ptr<ProcessGrid> make_grid(const GridCase& c, const ModelConfig& model,
                                              GridDevice device = {}) {
  return std::make_unique<ProcessGrid>(
      ranks_session(), c.sizes, WatchdogConfig{.seconds = 60},
      std::max(1, c.sizes.tensor / static_cast<int>(model.num_key_value_heads)),
      c.sequence_parallel, device);
}

class GridRun {
 public:
  /// Logical tensors by name, the same on every rank.
  using Logical = std::map<std::string, std::vector<double>>;

  GridRun(ProcessGrid& grid, const GridCase& which, std::vector<Group> groups, TrainerConfig config,
          const RunOptions& options, const std::filesystem::path& run_dir)
      : grid_(grid),
        context_(options.device, options.threads),
        model_(config_of(options.tiny), grid.parallel(), options.dtype, context_.memory(),
               WithGradients::kYes),
        source_(std::move(groups), options.epochs, options.shuffle, config.seed) {
    copy_weights_of_one_rank(options);
    config.run_dir = run_dir;
    config.zero = which.zero;
    TrainerEvents events;
    events.step_done = [this](const StepMetrics& metrics) {
      steps_.push_back(metrics);
      if (after_step) after_step(metrics);
    };
    trainer_ = std::make_unique<Trainer>(context_.ctx(), model_, source_, config, grid, events);
  }

  Trainer& trainer() { return *trainer_; }
  PolicyModel& model() { return model_; }
  ExecContext& ctx() { return context_.ctx(); }
  const std::vector<StepMetrics>& steps() const { return steps_; }
  std::function<void(const StepMetrics&)> after_step;

  /// By Hugging Face name, the same on every rank; in name order, like TrainingRun's.
  std::vector<double> weights() {
    return flat(summed(parameter_tensors(model_.parameters(), share())));
  }
  std::vector<double> moments() {
    return flat(summed(moment_tensors(const_cast<AdamW&>(trainer_->optimizer()), share())));
  }

  /// The same by name.
  Logical named_weights() { return summed(parameter_tensors(model_.parameters(), share())); }
  /// Of the last step, by Hugging Face name.
  Logical gradients() {
    std::vector<StateTensor> tensors;
    for (Parameter* parameter : model_.parameters()) {
      for (const ParameterPart& part : parameter->parts) {
        RowRange rows = intersection(row_range_of(part), share().of(*parameter));
        if (!part.is_primary || rows.count() == 0) rows = {part.row_begin, part.row_begin};
        Shard shard = part.shard;
        shard.global_offset =
            shard.global_offset.with(0, shard.global_offset[0] + rows.begin - part.row_begin);
        shard.local_shape = shard.local_shape.with(0, rows.count());
        tensors.push_back(
            {part.name, shard, parameter->grad.view().rows(rows.begin, rows.count())});
      }
    }
    return summed(tensors);
  }

  /// Calls visit(element of the logical tensor, row, column) for every element of a part.
  template <class Visit>
  static void for_each_element(const Shard& shard, Visit&& visit) {
    const bool matrix = shard.local_shape.rank() == 2;
    const std::int64_t width = matrix ? shard.local_shape[1] : 1;
    for (std::int64_t i = 0; i < shard.local_shape.numel(); ++i)
      visit((shard.global_offset[0] + i / width) * (matrix ? shard.global_shape[1] : 1) +
                (matrix ? shard.global_offset[1] : 0) + i % width,
            i);
  }

 private:
  RowShare share() { return {grid_.replicas().rank(), grid_.replicas().size()}; }

  void copy_weights_of_one_rank(const RunOptions& options) {
    TinyModel whole(config_of(options.tiny), accumulation_of(options.dtype));
    const auto weights = whole.weights();
    TestContext host;
    for (Parameter* parameter : model_.parameters()) {
      for (const ParameterPart& part : parameter->parts) {
        const auto& from = weights.at(part.name);
        const TensorView values = rows_of(part, parameter->weights());
        std::vector<double> local(static_cast<std::size_t>(values.numel()));
        for_each_element(part.shard, [&](std::int64_t element, std::int64_t i) {
          local[static_cast<std::size_t>(i)] = from.at(static_cast<std::size_t>(element));
        });
        copy(ctx().stream, host.from(values.dtype(), values.shape(), local), values);
      }
      round_master(ctx(), *parameter);
    }
  }

  /// Every element from the rank that speaks for it. All ranks list the same names.
  Logical summed(const std::vector<StateTensor>& tensors) {
    Logical logical;
    for (const StateTensor& tensor : tensors) {
      auto& values = logical[tensor.dataset];
      values.resize(static_cast<std::size_t>(tensor.shard.global_shape.numel()), 0.0);
      const auto local = values_of(tensor.local);
      for_each_element(tensor.shard, [&](std::int64_t element, std::int64_t i) {
        values.at(static_cast<std::size_t>(element)) = local[static_cast<std::size_t>(i)];
      });
    }
    for (auto& [name, values] : logical)
      grid_.world().all_reduce(ctx().stream, host_view(values.data(), {std::ssize(values)}),
                               ReduceOp::kSum);
    return logical;
  }
  std::vector<double> flat(const Logical& logical) const {
    std::vector<double> all;
    for (const auto& [name, values] : logical) all.insert(all.end(), values.begin(), values.end());
    return all;
  }

  ProcessGrid& grid_;
  TestContext context_;
  PolicyModel model_;
  RolloutsSource source_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<StepMetrics> steps_;
};

}  // namespace coppice::test
