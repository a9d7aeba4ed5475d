#pragma once
// What a collective takes on an axis of the process grid: which links its ring goes over, and the
// ring's time on them.
#include <cstdint>

#include "launch/cluster_profile.hpp"
#include "model/communication_plan.hpp"

namespace coppice {

/// The ranks of an axis: `size` of them, each `stride` ranks from the next.
struct AxisPlace {
  std::int64_t size = 1;
  std::int64_t members_of_node = 1;  ///< how many of them a node holds
  std::int64_t nodes() const { return (size + members_of_node - 1) / members_of_node; }
};

/// Tensor ranks are neighbours, then context, then data ranks.
AxisPlace place_of(GridAxis axis, const GridSizes& grid, std::int64_t key_value_heads,
                   std::int64_t ranks_per_node);

/// `calls` collectives that hand in `bytes` together (as communicators count: the whole of what is
/// reduced, the rank's own shard of what is gathered), along a ring of n ranks:
///
///   all_gather       (n - 1) bytes / bandwidth + calls x path
///   reduce_scatter   (n - 1)/n bytes / reduce bandwidth + calls x path
///   all_reduce       twice a reduce_scatter
///
/// A path passes each rank once: n - nodes links within nodes and nodes - 1 between them. Each
/// member of a node drives a link of its own to the next node; a ring is as fast as the slower kind
/// of link.
double collective_seconds(const ClusterProfile& cluster, const AxisPlace& place,
                          Collective collective, std::int64_t calls, std::int64_t bytes);

}  // namespace coppice
