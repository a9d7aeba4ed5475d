#include "launch/study_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"
#include "launch/html_page.hpp"
#include "launch/study_plots.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

// The least and the most of what there is: "1.21 to 7.27".
class Range {
 public:
  void add(std::optional<double> value) {
    if (!value) return;
    least_ = least_ ? std::min(*least_, *value) : *value;
    most_ = most_ ? std::max(*most_, *value) : *value;
  }
  bool empty() const { return !least_; }
  std::string text(double unit = 1) const {
    return fmt::format("{} to {}", figure_text(*least_ / unit), figure_text(*most_ / unit));
  }
  std::string most() const { return figure_text(most_, 2); }

 private:
  std::optional<double> least_, most_;
};

// Both formats of the report, filled side by side.
class BothReports {
 public:
  explicit BothReports(const std::string& title) : page_(title), text_("# " + title + "\n") {}

  void section(const char* id, const std::string& heading) {
    page_.section(id, heading);
    text_ += "\n## " + heading + "\n";
  }
  void say(const std::string& words) {
    page_.paragraph(words);
    text_ += "\n" + markdown_escaped(words) + "\n";
  }
  void warn(const std::string& words) {
    page_.warning(words);
    text_ += "\n**" + markdown_escaped(words) + "**\n";
  }
  void show(const ReportTable& table) {
    constexpr std::ptrdiff_t kShort = 24;
    const auto rows = std::ssize(table.rows);
    page_.table(table, rows > kShort ? fmt::format("table of {} rows", rows) : "");
    text_ += "\n" + to_markdown(table);
  }
  void quote(const std::string& lines, const std::string& what) {
    page_.lines(lines, what);
    text_ += "\n" + markdown_escaped(what) + ":\n\n```\n" + lines + "```\n";
  }
  void draw(const std::vector<std::string>& drawings) { page_.figures(drawings); }

  std::string html() const { return page_.text(); }
  const std::string& markdown() const { return text_; }

 private:
  HtmlPage page_;
  std::string text_;
};

std::string list_of(const std::vector<std::string>& texts) {
  if (texts.empty()) return "not recorded";
  std::string all;
  for (const auto& text : texts) all += (all.empty() ? "" : "; ") + text;
  return all;
}

void introduce(const Study& study, const StudyNames& names, BothReports& report) {
  std::size_t whole = 0;
  std::int64_t out_of_memory = 0, failed = 0;
  for (const StudyPoint& point : study.points) {
    whole += point.out_of_memory == 0 && point.failed == 0 ? 1 : 0;
    out_of_memory += point.out_of_memory > 0 ? 1 : 0;
    failed += point.failed > 0 ? 1 : 0;
  }
  report.say(fmt::format("{} of {} points are done; {} ran out of memory, {} failed.", whole,
                         study.points.size(), out_of_memory, failed));
  if (out_of_memory + failed > 0)
    report.warn(
        "Not every point is done. Tables say which; what went wrong stands under All points.");
  if (study.torn) report.warn("The last line of points.jsonl is not whole and is left out.");
  if (!names.common().empty()) report.say(names.common());
  report.say("Machine: " + list_of(study.machines) + ".");
  report.say("Program version: " + list_of(study.versions) + ".");
  report.say("Command: " + list_of(study.commands) + ".");
  report.say(
      "Every figure is of one training step; times are medians over the repetitions of a point. "
      "Grouped computes a group's prefix once, repeated once for each response. "
      "Ratio is prefix length / mean response length.");
}

// What a reader came for, before any plot.
void say_in_short(const Study& study, BothReports& report) {
  Range measured, reached, loss, gradient, logprobs;
  for (const StudyPoint& point : study.points) {
    if (point.sharing == "GROUPED") {
      const auto gain = speedup(study, point), flops = flop_ratio(study, point);
      measured.add(gain);
      if (gain && flops) reached.add(*gain / *flops);
    }
    const StudyPoint* reference = study.reference_of(point);
    if (point.done.empty() || reference == nullptr || reference == &point) continue;
    loss.add(difference_of(point, *reference, "loss"));
    gradient.add(difference_of(point, *reference, "grad_norm"));
    logprobs.add(point.figure("logprob_difference"));
  }
  if (!measured.empty())
    report.say(
        fmt::format("Sharing made a step {} times as fast, {} % of what the FLOP that it "
                    "saves let expect.",
                    measured.text(), reached.empty() ? kAbsent : reached.text(0.01)));
  if (!loss.empty() && !gradient.empty())
    report.say(fmt::format(
        "Largest differences between ways to compute the same: loss {}, gradient norm {}{}.",
        loss.most(), gradient.most(),
        logprobs.empty() ? "" : fmt::format(", log-probs {}", logprobs.most())));
}

void report_scaling(const Study& study, const StudyNames& names, SvgDrawer& drawer,
                    BothReports& report) {
  const auto strong = strong_scaling(study, names), weak = weak_scaling(study, names);
  report.section("strong", "Strong scaling: the same work on more ranks");
  if (strong.empty()) {
    report.say("No work was run on several grids of ranks.");
  } else {
    report.say(
        "Speed-up is the rate of executed FLOP over that of the fewest ranks, efficiency the same "
        "of each rank. Bytes are the payload of all ranks in a step; communication is the time in "
        "collectives, waiting for slower ranks included, where the points tell it by axis, else "
        "that of the phase reduce; its share is of the step.");
    report.draw(scaling_plots(strong, drawer));
    report.show(scaling_table(strong, names));
  }
  report.section("weak", "Weak scaling: groups that grow with the ranks");
  if (weak.empty()) {
    report.say("No group size grows with the ranks at as many responses to a rank.");
  } else {
    report.say("As many responses to each rank. The columns are those of strong scaling.");
    report.draw(scaling_plots(weak, drawer));
    report.show(scaling_table(weak, names));
  }
}

void fill(const Study& study, BothReports& report) {
  const StudyNames names(study);
  SvgDrawer drawer;
  introduce(study, names, report);
  say_in_short(study, report);

  report.section("speed", "Speed-up against group size");
  report.say(
      "Speed-up is the time of a repeated step over that of a grouped one. The FLOP ratio is the "
      "same of the FLOP that ran (equation 17 of the Prefix Grouper paper with the exact counts, "
      "not its limit 1/G): what sharing could save if every FLOP took as long. Planned is what "
      "coppice plan foretells, predicted what a cluster model does. Bars span the repetitions.");
  report.draw(speedup_plots(study, names, drawer));
  report.show(speedup_table(study, names));

  report.section("memory", "Memory against group size");
  report.say("High-water mark of the program's buffers on the fullest rank, measured and planned.");
  report.draw(memory_plots(study, names, drawer));
  report.show(memory_table(study, names));

  report.section("largest", "Largest group size within a memory budget");
  if (study.searches.empty())
    report.say("Not looked for: the study gives no memory_budget_bytes.");
  else
    report.show(largest_group_table(study, names));

  report.section("phases", "Time per phase");
  report.say(
      "Seconds of the slowest rank in each phase of a step. In a plot 8g is a group of 8 grouped, "
      "8r "
      "the same repeated; a cross stands for what is not done.");
  report.draw(phase_plots(study, names, drawer));
  report.show(phase_table(study, names));

  report_scaling(study, names, drawer, report);

  report.section("equality", "Equality");
  report.say(
      "Relative difference |a - b| / max(|a|, |b|) of the loss and the gradient norm against the "
      "repeated point of the same work on the fewest ranks. The mean size of an advantage counts "
      "for the loss too, where it is larger: an on-policy loss is zero but for rounding. "
      "Log-probs: "
      "the largest difference of grouped and repeated, where it was measured.");
  report.show(equality_table(study, names));

  report.section("points", "All points");
  report.show(point_table(study, names));
}

void show_config(const fs::path& out_dir, BothReports& report) {
  std::ifstream file(out_dir / "study.textproto", std::ios::binary);
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  report.section("config", "Config");
  if (config.empty())
    report.say("There is no study.textproto in this directory.");
  else
    report.quote(config, "The study's config, as it was resolved");
}

void write(PendingFile& file, const std::string& text) {
  write_at(file.descriptor(), 0, text.data(), std::ssize(text), file.target());
}

}  // namespace

void write_study_report(const fs::path& out_dir) {
  const Study study = read_study(out_dir);
  BothReports report("Coppice: scaling study");
  fill(study, report);
  show_config(out_dir, report);
  PendingFile page(out_dir / "report.html"), text(out_dir / "report.md");
  write(page, report.html());
  write(text, report.markdown());
  page.commit();
  text.commit();
}

}  // namespace coppice
