#pragma once
// The run directory at the start of training: made, held and told of the config by rank 0, and seen
// by every rank, since each writes its part of a checkpoint there. A directory that some rank lacks
// would otherwise show at the first save, when the steps before it are lost.
#include <filesystem>
#include <optional>
#include <string>

#include "launch/run_lock.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

/// How long a rank looks for what rank 0 has made: a network file system may show it late.
double patience_for_run_directory(double watchdog_seconds);

/// Makes `run_dir` where there is none, holds it (`lock`: rank 0's, where it holds it already),
/// clears what dead runs left there and writes config.textproto.
///
/// Parallel  collective over `world`; `host` is this rank's, for messages
/// Effects   rank 0 holds the lock until it is destroyed
/// Errors    ConfigError where another run holds it, or a rank does not see it within `patience`
///           seconds or may not write there; then no file and no directory is left
std::optional<RunLock> open_run_directory(const std::filesystem::path& run_dir,
                                          const std::string& config_text,
                                          std::optional<RunLock> lock, Communicator& world,
                                          const std::string& host, double patience);

}  // namespace coppice
