#include "launch/report_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "core/error.hpp"
#include "launch/run_report.hpp"
#include "launch/study_report.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

void report(const fs::path& directory) {
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::is_regular_file(directory / name, error); };
  if (holds("points.jsonl")) {
    write_study_report(directory);
    fmt::print("{}\n{}\n", (directory / "report.html").string(),
               (directory / "report.md").string());
  } else if (holds("metrics.jsonl")) {
    write_run_report(directory);
    fmt::print("{}\n", (directory / "run_report.html").string());
  } else {
    throw ConfigError({fmt::format(
        "{}: holds neither metrics.jsonl nor points.jsonl (a report is made of a run's steps or a "
        "study's points). Give a run_dir of coppice train or an out_dir of coppice study.",
        directory.string())});
  }
}

}  // namespace

void add_report_command(Commands& commands) {
  auto directory = std::make_shared<std::string>();
  commands
      .add("report", "Draws a run or a study as a page, from what is in its directory",
           {.body = [directory](Job&) { report(*directory); }})
      .option("DIR", *directory, "run_dir of coppice train, or out_dir of coppice study",
              Need::kRequired)
      .footer(
          "Writes into a run's DIR run_report.html, from metrics.jsonl; into a study's report.html "
          "and report.md,\nfrom points.jsonl. A page is one file with its plots inside; nothing is "
          "fetched when it is read.\nA run may be going on, or killed. The plots are drawn by "
          "gnuplot, which must be on the PATH: without it\nnothing is written, status 1.");
}

}  // namespace coppice
