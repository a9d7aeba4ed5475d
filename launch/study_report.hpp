#pragma once
// What a study found, as a page for people: report.html (one file, no network, plots inside) and
// report.md beside the points they are made from. It reads files only, so a report can be made
// again from a study that ran elsewhere; running points is launch/study_*'s business.
#include <filesystem>

namespace coppice {

/// Writes `out_dir`/report.html and report.md from `out_dir`/points.jsonl (docs/studies.md).
///
///   A point is an object per line: the sweep's fields (model, prefix_length, response_length,
///   group_size, sharing, recompute, tensor, context, data), repetition, status (ok, out_of_memory,
///   failed) with error, and figures of one step as the metrics name them, with predicted_* beside.
///   What a line lacks is shown as absent. Machine, version and command, where a line tells them,
///   are told on the page. A torn last line is left out and said so.
///   `out_dir`/largest_group.jsonl, where it is there, holds a search per line: the same fields
///   without group_size, memory_budget_bytes, largest_group_size (0: not even one response; with
///   bounded: true at least so many), predicted_memory_bytes of that size, or error.
///
/// Effects   both files appear whole or neither is touched; no other file is
/// Errors    DataError where a line is no point, with every such line; IoError where gnuplot, which
///           draws the plots, is missing or fails, or a file cannot be written
void write_study_report(const std::filesystem::path& out_dir);

}  // namespace coppice
