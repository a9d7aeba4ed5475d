#pragma once
// From a checked run config to what a run uses: defaults made explicit, then plain values. The pair
// stands alone so that reading and checking need not know what the values become.
#include "launch/run_config.hpp"

namespace coppice {

/// Sets every value that the run will use. Fields without meaning for it become absent, so that the
/// result is a config that reads back.
void resolve_run_config(config::RunConfig& config, RunConfigUse use, const JobSize& job);

/// The values of a resolved config, its text among them.
RunConfig plain_values(const config::RunConfig& config);

}  // namespace coppice
