#pragma once
// What must hold of a cluster file's values: what is missing, out of range, or faster than the
// device itself. How such a file is read is cluster_profile's business.
#include "launch/run_config_text.hpp"

namespace coppice::config {
class Cluster;
}

namespace coppice {

/// Adds every problem of a cluster that was read through `text`.
void check_cluster(const config::Cluster& cluster, RunConfigText& text);

}  // namespace coppice
