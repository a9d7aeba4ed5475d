#pragma once
// What the ranks of a job must agree on, or add up, about a step: decisions before anybody acts on
// them, and the figures of the metrics. Afterwards every rank holds the same figures in the same
// bits, so that what is written or saved does not depend on who does it.
#include "core/exec_context.hpp"
#include "parallel/process_grid.hpp"
#include "rl/metrics.hpp"

namespace coppice {

/// Whether any rank says so.
///
/// Parallel  collective over `world`
bool on_any_rank(ExecContext& ctx, Communicator& world, bool here);

/// Seconds and memory become those of the slowest and the fullest rank.
///
/// Parallel  collective over `world`; which figures are absent must be the same on all ranks
void take_maxima(ExecContext& ctx, Communicator& world, StepMetrics& metrics);

/// Watches the counters of a grid's communicators.
class TrafficMeter {
 public:
  explicit TrafficMeter(ProcessGrid& grid);

  /// Counts from here on.
  void restart();
  /// Puts what all ranks sent since then into the metrics; nothing where there is one rank.
  ///
  /// Parallel  collective over the grid's world
  void put(ExecContext& ctx, StepMetrics& metrics);

 private:
  struct Axis {
    const char* name;
    Communicator* comm;
    AxisTraffic start;
  };
  ProcessGrid& grid_;
  std::vector<Axis> axes_;
};

}  // namespace coppice
