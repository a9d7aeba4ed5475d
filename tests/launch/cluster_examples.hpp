#pragma once
// Clusters for tests: one of round numbers, on which times are worked out by hand.
#include "launch/cluster_profile.hpp"

namespace coppice::test {

/// Products and attention at 1 GFLOP/s whatever their size, everything else for nothing; nodes of
/// four ranks, links of 100 and 10 bytes/s.
inline ClusterProfile round_cluster() {
  constexpr double kFree = 1e30;
  ClusterProfile cluster;
  cluster.name = "round";
  cluster.nodes = 2;
  cluster.ranks_per_node = 4;
  cluster.peak_flops = 1e9;
  cluster.memory_bandwidth = kFree;
  cluster.memory_bytes = 1e12;
  const RateBySize flat{{{1, 1e9}}};
  cluster.gemm_forward = cluster.gemm_input_gradient = cluster.gemm_weight_gradient = flat;
  cluster.attention_forward = cluster.attention_backward = flat;
  cluster.memory = {kFree, kFree, kFree, kFree, kFree, kFree, kFree};
  cluster.within_node = {.bandwidth = 100, .reduce_bandwidth = 50, .latency = 0.25};
  cluster.between_nodes = {.bandwidth = 10, .reduce_bandwidth = 5, .latency = 2};
  return cluster;
}

}  // namespace coppice::test
