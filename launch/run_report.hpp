#pragma once
// A training run as a page for people: run_report.html in its directory, one file, no network, the
// plots inside. Made from what the run has written alone, so it can be made of a run that was
// killed, still goes on, or lies on another machine.
#include <filesystem>

namespace coppice {

/// Writes `run_dir`/run_report.html from metrics.jsonl, and config.textproto where it is there.
///
/// Effects   the page appears whole or is not touched; no other file is
/// Errors    DataError with every line of metrics.jsonl that is no step, or where there is none;
///           IoError where gnuplot, which draws the plots, is missing or fails, or a file cannot be
///           read or written
void write_run_report(const std::filesystem::path& run_dir);

}  // namespace coppice
