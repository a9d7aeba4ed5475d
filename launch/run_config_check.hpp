#pragma once
// What a run config must satisfy beyond its schema: ranges, required fields, files that exist,
// combinations that make sense, and what this version does not do yet. Defaults are not set here.
#include "core/error.hpp"
#include "launch/run_config_text.hpp"

namespace coppice::config {
class RunConfig;
}

namespace coppice {

/// Who reads the config: train asks for a run_dir; score has only parallel, numerics and batching.
enum class RunConfigUse { kTrain, kPlan, kScore };

/// What a config is read for.
struct JobSize {
  int ranks = 1;
  int default_threads = 1;  ///< of a rank
  int cuda_devices = 0;     ///< of this machine that this build can use
  int local_ranks = 1;      ///< of this machine
};

/// Adds a problem with a field that names a file to read where there is none. An empty name is no
/// problem here. `instead` is what else the user may do where it is a directory.
void check_file(RunConfigText& text, const std::string& path, const std::string& name,
                std::string_view instead = "");
/// What stands behind a zero byte would be lost on the way to the system.
bool is_path(const std::string& name);
void check_path(RunConfigText& text, const std::string& path, const std::string& name);

/// Adds every problem of `config`, which `text` has read.
void check_run_config(const config::RunConfig& config, RunConfigText& text, RunConfigUse use,
                      const JobSize& job);

}  // namespace coppice
