#pragma once
// The file that --trace asks for: the events of all ranks in Chrome's trace format, which
// chrome://tracing and Perfetto open. What its names mean is in docs/trace.md; what is recorded is
// up to the code that is traced.
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/trace.hpp"
#include "parallel/process_grid.hpp"

namespace coppice {

/// Adds a problem where `file` cannot be written, is read, or is a place that the run itself uses.
/// It may lie in `run_dir` before that is made.
void check_trace_file(const std::filesystem::path& file, const std::filesystem::path& run_dir,
                      const std::vector<std::filesystem::path>& inputs, Problems& problems);

/// Which rank a trace is of.
struct TracedRank {
  int rank = 0;
  std::string host;
  GridCoordinates place;
};

/// One rank's events as the members of a JSON array, a line each, without the last comma.
///
/// `zero_unix_ns`: what the file counts time from, not later than the trace's start
/// Errors    ContractError while a scope is open
std::string trace_json(const Trace& trace, const TracedRank& rank, std::int64_t zero_unix_ns);

/// Writes `file`, whole or not at all, and says on standard error what it had no room for. The
/// grid is not traced any more.
///
/// Parallel  collective over the grid's world; rank 0 writes
/// Memory    one rank's events as text (about 180 bytes each) on every rank
/// Errors    IoError, on all ranks
void write_trace(const std::filesystem::path& file, const Trace& trace, ProcessGrid& grid,
                 const std::string& host);

}  // namespace coppice
