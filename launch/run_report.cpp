#include "launch/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "checkpoint/pending_file.hpp"
#include "core/build_config.hpp"
#include "core/error.hpp"
#include "launch/html_page.hpp"
#include "launch/progress.hpp"
#include "launch/run_metrics.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct Shown {
  const char* name;   // of the metric
  const char* title;  // in a legend or table
};

// One plot: figures of one unit.
struct Panel {
  const char* title;
  const char* y_label;
  bool from_zero;
  std::vector<Shown> figures;
};

// One section of the page, in the order a reader asks: does it learn, is it healthy, is it fast?
struct Chapter {
  const char* id;
  const char* heading;
  std::vector<Panel> panels;
};

std::vector<Chapter> chapters() {
  return {
      {"loss",
       "Loss",
       {{"Loss", "loss (no unit)", false, {{"loss", "loss"}, {"policy_loss", "policy loss"}}}}},
      {"reward",
       "Reward",
       {{"Reward, mean over responses", "reward (its own unit)", false, {{"reward_mean", "mean"}}},
        {"Reward, standard deviation", "reward (its own unit)", true, {{"reward_std", "std"}}}}},
      {"policy",
       "Policy: KL, entropy, clip fraction",
       {{"KL", "KL (nats per token)", false, {{"kl", "kl"}}},
        {"Entropy", "entropy (nats per token)", true, {{"entropy", "entropy"}}},
        {"Clip fraction", "clipped (share of tokens)", true, {{"clip_fraction", "clip fraction"}}},
        {"Ratio of probabilities",
         "new / old (no unit)",
         false,
         {{"ratio_mean", "mean"}, {"ratio_max", "most"}}}}},
      {"gradient",
       "Gradient norm and learning rate",
       {{"Gradient norm before clipping", "L2 norm (no unit)", true, {{"grad_norm", "gradient"}}},
        {"Learning rate", "learning rate (no unit)", true, {{"learning_rate", "learning rate"}}}}},
      {"time",
       "Time per phase",
       {{"Time of a step", "time (s)", true, {{"step_seconds", "step"}}},
        {"Time per phase",
         "time (s)",
         true,
         {{"seconds.plan", "plan"},
          {"seconds.forward", "forward"},
          {"seconds.backward", "backward"},
          {"seconds.reduce", "reduce"},
          {"seconds.optimizer", "optimizer"},
          {"seconds.checkpoint", "checkpoint"},
          {"seconds.old_logprobs", "old log-probs"}}},
        {"Rate",
         "rows per second (1/s)",
         true,
         {{"rows_per_second", "rows that ran"}, {"logical_tokens_per_second", "logical rows"}}}}},
      {"sharing",
       "Sharing ratio",
       {{"Sharing ratio",
         "logical rows / rows (no unit)",
         true,
         {{"sharing_ratio", "sharing ratio"}}},
        {"Rows of a step", "rows (tokens)", true, {{"rows", "ran"}, {"logical_rows", "logical"}}}}},
      {"memory",
       "Memory and communication",
       {{"Peak memory of the fullest rank so far",
         "memory (bytes)",
         true,
         {{"peak_memory_bytes", "buffers"}, {"peak_resident_bytes", "resident"}}},
        {"Payload sent in a step, all ranks",
         "payload (bytes)",
         true,
         {{"communication_bytes", "sent"}}}}}};
}

// What is absent is said: a reader would else look for it.
void show_chapter(const Chapter& chapter, const RunMetrics& metrics, SvgDrawer& drawer,
                  HtmlPage& page) {
  page.section(chapter.id, chapter.heading);
  std::vector<std::string> drawings;
  std::string absent;
  ReportTable table{{"figure", "first", "last", "least", "mean", "most"}, {}};
  for (const Panel& panel : chapter.panels) {
    CurvePlot plot{panel.title, "step (count)", panel.y_label, {}, Scale::kLinear, panel.from_zero};
    for (const auto& [name, title] : panel.figures) {
      const auto values = metrics.values(name);
      auto curve = metrics.curve(name, title, static_cast<int>(plot.curves.size()));
      if (!curve) {
        absent += fmt::format("{}{}", absent.empty() ? "" : ", ", name);
        continue;
      }
      plot.curves.push_back(std::move(*curve));
      const double mean =
          std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
      table.rows.push_back({name, figure_text(values.front(), 4), figure_text(values.back(), 4),
                            figure_text(*std::min_element(values.begin(), values.end()), 4),
                            figure_text(mean, 4),
                            figure_text(*std::max_element(values.begin(), values.end()), 4)});
    }
    if (!plot.curves.empty()) drawings.push_back(drawer.draw(plot));
  }
  page.figures(drawings);
  if (!table.rows.empty()) page.table(table);
  if (!absent.empty()) page.paragraph(fmt::format("No step of this run has: {}.", absent));
}

std::string steps_text(const std::vector<std::int64_t>& steps) {
  constexpr std::size_t kMost = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(steps.size(), kMost); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", steps[i]);
  return steps.size() > kMost ? text + fmt::format(" and {} more", steps.size() - kMost) : text;
}

double sum_of(const RunMetrics& metrics, const char* name) {
  const auto values = metrics.values(name);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

void introduce(const RunMetrics& metrics, HtmlPage& page) {
  const auto first = metrics.steps.front().step, last = metrics.steps.back().step;
  page.paragraph(fmt::format(
      "{} steps ({} to {}), {} in them; {} responses, {} tokens in the loss.", metrics.steps.size(),
      first, last, readable_duration(sum_of(metrics, "step_seconds")),
      count_text(sum_of(metrics, "responses")), count_text(sum_of(metrics, "loss_tokens"))));
  const double rows = sum_of(metrics, "rows");
  std::map<std::string, int> sharing;
  std::vector<std::int64_t> skipped;
  for (const RunStep& step : metrics.steps) {
    if (!step.sharing.empty()) ++sharing[step.sharing];
    if (step.skipped) skipped.push_back(step.step);
  }
  if (rows > 0) {
    std::string how;
    for (const auto& [name, count] : sharing)
      how += fmt::format("{}{} steps {}", how.empty() ? "" : ", ", count, name);
    page.paragraph(fmt::format(
        "Sharing ratio over the run: {} (logical rows, as if every prompt were repeated for each "
        "response, over the rows that ran); {}.",
        figure_text(sum_of(metrics, "logical_rows") / rows), how));
  }
  if (!skipped.empty())
    page.warning(fmt::format("Skipped steps, which changed nothing: {}.", steps_text(skipped)));
  if (metrics.torn) page.warning("The last line of metrics.jsonl is not whole and is left out.");
  if (metrics.steps_of_a_point() > 1)
    page.paragraph(
        fmt::format("A point of a plot is the mean of {} neighbouring steps; the band spans them.",
                    metrics.steps_of_a_point()));
  page.paragraph(
      "What each figure means: docs/metrics.md of Coppice. Seconds are those of the "
      "slowest rank.");
  page.paragraph(fmt::format("Drawn by coppice {} (coppice report).", build::kVersion));
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void write_run_report(const fs::path& run_dir) {
  const RunMetrics metrics = read_run_metrics(run_dir / "metrics.jsonl");
  std::error_code error;
  const fs::path place = fs::weakly_canonical(run_dir, error);
  HtmlPage page("Coppice: run " + (place.has_filename() ? place.filename() : run_dir).string());
  introduce(metrics, page);
  SvgDrawer drawer;
  for (const Chapter& chapter : chapters()) show_chapter(chapter, metrics, drawer, page);
  const std::string config = text_of(run_dir / "config.textproto");
  page.section("config", "Config");
  if (config.empty())
    page.paragraph("There is no config.textproto in this directory.");
  else
    page.lines(config, "the resolved config of the newest start");
  write_file_atomically(run_dir / "run_report.html", page.text());
}

}  // namespace coppice
