#pragma once
// `coppice plan --cluster`: the first step of a run on a cluster that need not be there, and the
// grids that it could take. What is predicted and how is cluster_model's and cluster_search's; here
// it is put together and shown.
#include <nlohmann/json.hpp>
#include <string>

#include "launch/cluster_search.hpp"
#include "launch/run_data.hpp"

namespace coppice {

struct ClusterPlan {
  ClusterProfile cluster;
  std::int64_t ranks = 1;       ///< that the search is over
  StepPrediction prediction{};  ///< of the config's own grid
  double repeated_seconds = 0;  ///< the same with every prompt repeated
  std::vector<GridChoice> grids{};
};

/// `ranks` 0: as many as the cluster has.
///
/// Effects   none on data.source: it stands where it stood
/// Errors    ConfigError where the cluster's devices cannot run this config or model, or the
///           config's grid has more ranks than links are told for
ClusterPlan plan_on_cluster(const ClusterProfile& cluster, std::int64_t ranks,
                            const RunConfig& config, RunData& data);

nlohmann::ordered_json json_of(const ClusterPlan& plan, std::int64_t peak_memory_bytes);
void print_text(const ClusterPlan& plan, std::int64_t peak_memory_bytes);

/// The keys of json_of, for --help.
std::string cluster_keys_help();

}  // namespace coppice
