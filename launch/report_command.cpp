#include "launch/report_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "core/error.hpp"
#include "launch/study_report.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

void report(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_regular_file(directory / "points.jsonl", error))
    throw ConfigError({fmt::format(
        "{}: holds no points.jsonl of a study (nothing to report). Give the out_dir of a study.",
        directory.string())});
  write_study_report(directory);
  fmt::print("{}\n{}\n", (directory / "report.html").string(), (directory / "report.md").string());
}

}  // namespace

void add_report_command(Commands& commands) {
  auto directory = std::make_shared<std::string>();
  commands
      .add("report", "Writes a page about a study, from what is in its directory",
           {.body = [directory](Job&) { report(*directory); }})
      .option("DIR", *directory, "out_dir of a study", Need::kRequired);
}

}  // namespace coppice
