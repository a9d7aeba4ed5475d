#include "launch/run_config_check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "configs/run_config.pb.h"
#include "launch/device_choice.hpp"
#include "launch/grid_check.hpp"
#include "rl/group_source.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using config::Advantage;
using config::Loss;
using config::Optimizer;

class Checker {
 public:
  Checker(const config::RunConfig& config, RunConfigText& text) : config_(config), text_(text) {}

  void check(RunConfigUse use, const JobSize& job) {
    const bool plans = use == RunConfigUse::kPlan;
    check_grid(config_.parallel(), text_, plans ? 0 : job.ranks);
    check_device(config_, text_, use, job, plans ? planned_ranks() : job.ranks);
    check_threads();
    at_least("batching.max_rows_per_microbatch", config_.batching().max_rows_per_microbatch(), 1);
    if (use == RunConfigUse::kScore) return;
    if (use == RunConfigUse::kTrain) required("run_dir", config_.run_dir().empty());
    check_paths();
    check_files();
    check_loss();
    check_advantage();
    check_optimizer();
    check_limits();
  }

 private:
  template <class... Args>
  void problem(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
    text_.add_problem(path, fmt::format(format, std::forward<Args>(args)...));
  }

  // A field that was given with a refused value has been reported already.
  void required(const std::string& path, bool empty) {
    if (!empty) return;
    if (!text_.given(path))
      problem(path, "missing. Set it{} in the file or with --set {}=...",
              path == "model.checkpoint" ? " (or model.hf)" : "", path);
    else if (config_has_text(path))
      problem(path, "empty. Give it a value.");
  }
  bool config_has_text(const std::string& path) const {
    if (path == "run_dir") return config_.has_run_dir();
    if (path == "model.checkpoint") return config_.model().has_checkpoint();
    return config_.data().has_rollouts();
  }
  void check_paths() {
    for (const auto& [path, name] :
         {std::pair<const char*, const std::string&>("run_dir", config_.run_dir()),
          {"model.checkpoint", config_.model().checkpoint()},
          {"model.hf", config_.model().hf()},
          {"data.rollouts", config_.data().rollouts()}})
      check_path(text_, path, name);
  }
  void file(const std::string& path, const std::string& name) {
    required(path, name.empty());
    check_file(text_, path, name,
               path == "model.checkpoint" ? ", or a Hugging Face directory in model.hf" : "");
  }
  void at_least(const std::string& path, std::int64_t value, std::int64_t least) {
    if (value < least) problem(path, "{} is too small. Give {} or more.", value, least);
  }
  void not_negative(const std::string& path, double value) {
    if (!std::isfinite(value) || value < 0)
      problem(path, "{} is not a finite number of 0 or more.", value);
  }
  void finite(const std::string& path, double value) {
    if (!std::isfinite(value)) problem(path, "{} is not a finite number.", value);
  }
  void decay_rate(const std::string& path, double value) {
    if (!(value >= 0 && value < 1))
      problem(path, "{} is not in [0, 1) (it is the decay rate of a mean).", value);
  }

  std::int64_t planned_ranks() const {
    const auto& grid = config_.parallel();
    return saturating_product(saturating_product(grid.tensor(), grid.context()),
                              std::max<std::int64_t>(1, grid.data()));
  }
  void check_threads() {
    if (!config_.has_threads_per_rank()) return;
    at_least("threads_per_rank", config_.threads_per_rank(), 1);
    if (config_.threads_per_rank() > 1024)
      problem("threads_per_rank", "{} is more than 1024. Use at most the machine's cores.",
              config_.threads_per_rank());
  }

  // One of model.checkpoint and model.hf; a field given as "" is as if it were not there, so that
  // --set can turn from one to the other.
  void check_model() {
    const std::string& checkpoint = config_.model().checkpoint();
    const std::string& hf = config_.model().hf();
    const bool hf_was_refused = text_.given("model.hf") && !config_.model().has_hf();
    std::error_code error;
    if (!checkpoint.empty() && !hf.empty())
      problem("model.hf",
              "\"{}\", but model.checkpoint is \"{}\" (a run begins with one model). Remove one "
              "of them.",
              hf, checkpoint);
    if (!checkpoint.empty() || (hf.empty() && !hf_was_refused))
      file("model.checkpoint", checkpoint);
    if (hf.empty() || !is_path(hf)) return;
    if (!fs::exists(hf, error))
      problem("model.hf",
              "the directory \"{}\" does not exist (paths are relative to the current directory).",
              hf);
    else if (!fs::is_directory(hf, error))
      problem("model.hf",
              "\"{}\" is not a directory. Give a Hugging Face directory, or name an HDF5 model in "
              "model.checkpoint.",
              hf);
  }

  void check_files() {
    check_model();
    if (text_.given("model.reference"))
      problem("model.reference",
              "reference models come later. Put ref_logprobs into the rollouts with coppice score "
              "--fill ref_logprobs.");
    file("data.rollouts", config_.data().rollouts());
    if (!text_.given("data.groups_per_step"))
      problem("data.groups_per_step", "missing. Set it in the file or with --set.");
    else if (config_.data().has_groups_per_step())
      at_least("data.groups_per_step", config_.data().groups_per_step(), 1);
    at_least("data.epochs", config_.data().epochs(), 1);
  }

  void check_loss() {
    const Loss& loss = config_.loss();
    not_negative("loss.clip_low", loss.clip_low());
    not_negative("loss.clip_high", loss.clip_high());
    if (loss.dual_clip() != 0 && !(std::isfinite(loss.dual_clip()) && loss.dual_clip() > 1))
      problem("loss.dual_clip", "{} is neither 0 (off) nor a number greater than 1.",
              loss.dual_clip());
    not_negative("loss.kl_coef", loss.kl_coef());
    finite("loss.entropy_coef", loss.entropy_coef());
    if (!(std::isfinite(loss.temperature()) && loss.temperature() > 0))
      problem("loss.temperature", "{} is not a finite number greater than 0.", loss.temperature());
    at_least("loss.updates_per_batch", loss.updates_per_batch(), 1);
    if (loss.kind() == Loss::SFT) {
      for (const char* name : {"clip_low", "clip_high", "dual_clip"})
        if (text_.given(fmt::format("loss.{}", name)))
          problem(fmt::format("loss.{}", name),
                  "does not go with kind: SFT (which clips nothing). Remove it.");
    }
    const bool by_length = loss.has_aggregation()
                               ? loss.aggregation() == Loss::SEQUENCE_MEAN_TOKEN_SUM_NORM
                               : loss.kind() == Loss::DR_GRPO;
    const std::string path = "loss.max_response_length";
    if (by_length && !text_.given(path))
      problem(path,
              "missing (aggregation SEQUENCE_MEAN_TOKEN_SUM_NORM divides by it). Set it, or "
              "another aggregation.");
    else if (!by_length && text_.given(path))
      problem(path, "goes with aggregation SEQUENCE_MEAN_TOKEN_SUM_NORM only. Remove it.");
    if (loss.has_max_response_length()) at_least(path, loss.max_response_length(), 1);
  }

  void check_advantage() {
    not_negative("advantage.epsilon", config_.advantage().epsilon());
    if (config_.loss().kind() != Loss::SFT) return;
    for (const char* name : {"normalization", "epsilon", "drop_zero_std_groups"})
      if (text_.given(fmt::format("advantage.{}", name)))
        problem(fmt::format("advantage.{}", name),
                "does not go with loss.kind: SFT (which has no rewards). Remove it.");
  }

  void check_optimizer() {
    const Optimizer& optimizer = config_.optimizer();
    not_negative("optimizer.learning_rate", optimizer.learning_rate());
    decay_rate("optimizer.beta1", optimizer.beta1());
    decay_rate("optimizer.beta2", optimizer.beta2());
    not_negative("optimizer.epsilon", optimizer.epsilon());
    not_negative("optimizer.weight_decay", optimizer.weight_decay());
    not_negative("optimizer.max_grad_norm", optimizer.max_grad_norm());
    at_least("optimizer.warmup_steps", optimizer.warmup_steps(), 0);
    if (!optimizer.has_total_steps()) return;
    at_least("optimizer.total_steps", optimizer.total_steps(), 1);
    if (optimizer.schedule() != Optimizer::CONSTANT && optimizer.total_steps() >= 1 &&
        optimizer.total_steps() <= optimizer.warmup_steps())
      problem("optimizer.total_steps",
              "{} leaves no step behind warmup_steps = {} for the decay. Make it larger.",
              optimizer.total_steps(), optimizer.warmup_steps());
  }

  void check_limits() {
    at_least("checkpoint.every_steps", config_.checkpoint().every_steps(), 0);
    at_least("checkpoint.keep_last", config_.checkpoint().keep_last(), 1);
    at_least("limits.max_steps", config_.limits().max_steps(), 0);
    at_least("limits.max_bad_steps", config_.limits().max_bad_steps(), 1);
    at_least("limits.watchdog_seconds", config_.limits().watchdog_seconds(), 1);
    at_least("limits.parameter_check_steps", config_.limits().parameter_check_steps(), 0);
  }

  const config::RunConfig& config_;
  RunConfigText& text_;
};

}  // namespace

bool is_path(const std::string& name) { return name.find('\0') == name.npos; }

void check_path(RunConfigText& text, const std::string& path, const std::string& name) {
  if (!is_path(name)) text.add_problem(path, "holds a zero byte (no path has one). Take it out.");
}

void check_file(RunConfigText& text, const std::string& path, const std::string& name,
                std::string_view instead) {
  std::error_code error;
  if (name.empty() || !is_path(name)) return;
  if (fs::is_directory(name, error))
    text.add_problem(
        path, fmt::format("\"{}\" is not a file. Give the path of a file{}.", name, instead));
  else if (!fs::exists(name, error))
    text.add_problem(
        path,
        fmt::format("the file \"{}\" does not exist (paths are relative to the current directory).",
                    name));
}

void check_run_config(const config::RunConfig& config, RunConfigText& text, RunConfigUse use,
                      const JobSize& job) {
  Checker(config, text).check(use, job);
}

}  // namespace coppice
