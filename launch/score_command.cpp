#include "launch/score_command.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/error.hpp"
#include "launch/device_choice.hpp"
#include "launch/fingerprints.hpp"
#include "launch/grid_check.hpp"
#include "launch/one_line.hpp"
#include "launch/open_model.hpp"
#include "launch/output_path.hpp"
#include "launch/progress.hpp"
#include "launch/run_config.hpp"
#include "launch/trace_file.hpp"
#include "rl/score_ranking.hpp"
#include "rl/scorer.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct ScoreOptions {
  std::string checkpoint, rollouts, out;
  std::string sharing, precision, device, fill;
  double temperature = 1.0;
  std::vector<std::string> set;
  std::optional<std::string> trace;
  bool summary = false;
};

void check_paths(const ScoreOptions& options, const Job& job, Problems& problems) {
  std::error_code error;
  for (const auto& [flag, path] :
       {std::pair{"--checkpoint", options.checkpoint}, std::pair{"--rollouts", options.rollouts}})
    if (!fs::exists(path, error) || fs::is_directory(path, error))
      problems.add("{} {}: there is no such file.", flag, path);
  if (!job.is_first()) return;  // the others write nothing
  std::vector<fs::path> inputs = {options.checkpoint};
  if (options.fill.empty()) inputs.emplace_back(options.rollouts);
  check_output_file(options.out, inputs, problems);
  if (!options.trace) return;
  check_output_file(*options.trace, {options.checkpoint, options.rollouts}, problems, "--trace");
  if (fs::weakly_canonical(*options.trace, error) == fs::weakly_canonical(options.out, error))
    problems.add("--trace {}: is --out too. Give another name.", *options.trace);
}

RunConfig checked_config(const ScoreOptions& options, const Job& job) {
  Problems problems;
  check_paths(options, job, problems);
  if (!(std::isfinite(options.temperature) && options.temperature > 0))
    problems.add("--temperature {} is not a finite number greater than 0.", options.temperature);
  RunConfig config;
  try {
    config = make_score_config({options.sharing, options.precision, options.device}, options.set,
                               size_of(job));
  } catch (const ConfigError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<ConfigError>();
  return config;
}

struct Input {
  ModelFile file;
  std::vector<Group> groups;
};

Input read_input(const ScoreOptions& options, const RunConfig& config, const Job& job) {
  Problems problems;
  std::optional<ModelFile> file;
  try {
    file.emplace(open_model(CheckpointReader(options.checkpoint), job));
    problems.add_all(tensor_problems(file->config, config.grid.tensor, config.tensor_place));
    problems.add_all(device_problems(file->config, config.device));
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  std::vector<Group> groups;
  try {
    // Without a model its vocabulary is unknown; everything else can still be checked.
    groups = read_rollouts(options.rollouts, scoring_needs(file ? file->config : ModelConfig{}));
    check_row_budget(groups, config.trainer.batching);
  } catch (const InputError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<DataError>();
  return {std::move(*file), std::move(groups)};
}

// What would make ranks compute or write something else than their peers.
std::string given(const ScoreOptions& options, const RunConfig& config) {
  return fmt::format("{}\n{}\n{}\n{:a}\n{}\n{}\n{}", options.checkpoint, options.rollouts,
                     options.out, options.temperature, options.fill, options.trace.value_or(""),
                     config.common_text());
}

// Each group's candidates, best first.
void print_summary(std::span<const Group> groups, std::span<const GroupScores> scores) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto ranked = rank_candidates(scores[g]);
    std::sort(ranked.begin(), ranked.end(),
              [](const auto& a, const auto& b) { return a.by_sum < b.by_sum; });
    fmt::print("{}: {} responses to {} prompt tokens\n{:>10}{:>9}{:>9}{:>9}{:>14}{:>12}\n",
               one_line(groups[g].name), ranked.size(), groups[g].prompt_ids.size(), "response",
               "by sum", "by mean", "tokens", "sum", "mean");
    for (const RankedCandidate& c : ranked)
      fmt::print("{:>10}{:>9}{:>9}{:>9}{:>14.6g}{:>12.6g}\n", c.response, c.by_sum, c.by_mean,
                 c.tokens, c.sum, c.mean);
  }
}

void score(const ScoreOptions& options, Job& job) {
  const RunConfig config = checked_config(options, job);
  const BatchingConfig& batching = config.trainer.batching;
  const auto [file, groups] = read_input(options, config, job);
  job.set_patience(config.watchdog_seconds);
  job.agree({fingerprint_of_text("what coppice score was told", given(options, config)),
             fingerprint_of_file("the rollouts file " + options.rollouts, options.rollouts),
             fingerprint_of_model("the model file " + options.checkpoint, *file.checkpoint())});

  std::optional<Trace> trace;
  if (options.trace) trace.emplace();
  Session session(job, config, file.config, trace ? &*trace : nullptr);
  const auto model = load_model(file, session, config.precision, WithGradients::kNo);
  std::optional<Progress> progress;
  if (job.is_first()) progress.emplace("micro-batch");
  const auto scores =
      score_groups(session.ctx(), session.grid(), *model, groups, batching, options.temperature,
                   nullptr, [&](std::int64_t done, std::int64_t all) {
                     if (!progress) return;
                     progress->set_total(all);
                     progress->update(done);
                   });
  progress.reset();
  if (trace) write_trace(*options.trace, *trace, session.grid(), job.mpi().host());
  if (!job.is_first()) return;
  if (options.summary) print_summary(groups, scores);
  if (options.fill.empty())
    write_scores(options.out, groups, scores);
  else
    fill_rollouts(
        options.rollouts, options.out,
        options.fill == "old_logprobs" ? FillField::kOldLogprobs : FillField::kRefLogprobs, groups,
        scores);
}

}  // namespace

void add_score_command(Commands& commands) {
  auto options = std::make_shared<ScoreOptions>();
  commands
      .add("score", "Log-probabilities and entropies of every response token of a rollouts file",
           {.body = [options](Job& job) { score(*options, job); }, .ranks = RunsOn::kAllRanks})
      .option("--checkpoint", options->checkpoint, "model or checkpoint (.h5)", Need::kRequired)
      .option("--rollouts", options->rollouts, "rollouts file (.jsonl)", Need::kRequired)
      .option("--out", options->out, "file to write (.jsonl)", Need::kRequired)
      .choice("--sharing", options->sharing, {"grouped", "repeated"},
              "compute a group's prompt once, or once for each response [grouped]")
      .choice("--precision", options->precision, {"f32", "f64", "bf16"},
              "element type of the computation [f32 on the CPU, bf16 on CUDA]")
      .option("--temperature", options->temperature, "divides the logits [1.0]")
      .choice("--device", options->device, {"auto", "cpu", "cuda"},
              "where to compute [auto: CUDA where this build and machine have it]")
      .choice("--fill", options->fill, {"old_logprobs", "ref_logprobs"},
              "write the rollouts file with this field set, instead of scores")
      .flag("--summary", options->summary,
            "print each group's responses in the order of their summed and mean log-probs")
      .option("--trace", options->trace,
              "file to write: what every rank did and when, as of coppice train")
      .list(
          "--set", options->set,
          "FIELD=VALUE for threads_per_rank or a field of parallel, numerics or batching, as in a "
          "run config; may be given several times")
      .footer(
          "One line per group, in the file's order:\n"
          "  {\"group\": \"g0\", \"responses\": [{\"logprobs\": [...], \"entropies\": [...]}, "
          "...]}\n"
          "with one value per response token, natural logarithms.");
}

}  // namespace coppice
