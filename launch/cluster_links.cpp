#include "launch/cluster_links.hpp"

#include <algorithm>

namespace coppice {
namespace {

struct Ring {
  double bandwidth, reduce_bandwidth, path_seconds;
};

Ring ring_of(const ClusterProfile& cluster, const AxisPlace& place) {
  const LinkRates &within = cluster.within_node, &between = cluster.between_nodes;
  const auto nodes = place.nodes();
  COPPICE_CHECK(place.members_of_node == 1 || within.bandwidth > 0,
                "{} ranks of a node without a link", place.members_of_node);
  COPPICE_CHECK(nodes == 1 || between.bandwidth > 0, "{} nodes without a link", nodes);
  const double path = static_cast<double>(place.size - nodes) * within.latency +
                      static_cast<double>(nodes - 1) * between.latency;
  if (nodes == 1) return {within.bandwidth, within.reduce_bandwidth, path};
  const auto links = static_cast<double>(place.members_of_node);
  Ring ring{links * between.bandwidth, links * between.reduce_bandwidth, path};
  if (place.members_of_node > 1) {
    ring.bandwidth = std::min(ring.bandwidth, within.bandwidth);
    ring.reduce_bandwidth = std::min(ring.reduce_bandwidth, within.reduce_bandwidth);
  }
  return ring;
}

}  // namespace

AxisPlace place_of(GridAxis axis, const GridSizes& grid, std::int64_t key_value_heads,
                   std::int64_t ranks_per_node) {
  const std::int64_t tensor = grid.tensor, replicas = std::int64_t{grid.context} * grid.data;
  std::int64_t size = 1, stride = 1;
  switch (axis) {
    case GridAxis::kTensor:
      size = tensor;
      break;
    case GridAxis::kContext:
      size = grid.context, stride = tensor;
      break;
    case GridAxis::kReplicas:
      size = replicas, stride = tensor;
      break;
    case GridAxis::kSharedKeyValue:
      size = std::max<std::int64_t>(1, tensor / key_value_heads);
      break;
    case GridAxis::kWorld:
      size = tensor * replicas;
      break;
  }
  return {size, std::clamp<std::int64_t>(ranks_per_node / stride, 1, size)};
}

double collective_seconds(const ClusterProfile& cluster, const AxisPlace& place,
                          Collective collective, std::int64_t calls, std::int64_t bytes) {
  if (place.size == 1 || calls == 0) return 0;
  const Ring ring = ring_of(cluster, place);
  const auto ranks = static_cast<double>(place.size), payload = static_cast<double>(bytes);
  const double paths = static_cast<double>(calls) * ring.path_seconds;
  const double scatter = (ranks - 1) / ranks * payload / ring.reduce_bandwidth + paths;
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * scatter;
    case Collective::kReduceScatter:
      return scatter;
    case Collective::kAllGather:
      return (ranks - 1) * payload / ring.bandwidth + paths;
    case Collective::kBroadcast:
      return payload / ring.bandwidth + paths;
    case Collective::kBarrier:
      break;
  }
  return 2 * paths;
}

}  // namespace coppice
