#pragma once
// Measures what cluster_model needs to know of a CPU: rates of this program's own ops and, with
// several ranks, of its collectives. Each figure is the median of repetitions within a share of the
// time given, with operands that do not stay in the caches, as a step's do not.
#include "launch/cluster_profile.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

enum class CalibrationClock {
  kWall,
  kProcessor,  ///< time that this process computes: other programs do not count. One thread only
};

struct CalibrationOptions {
  int threads = 1;      ///< of each rank
  double seconds = 20;  ///< about how long all of it may take
  CalibrationClock clock = CalibrationClock::kWall;
};

/// The profile of one node whose ranks are `world`: all measure at once, since they share caches
/// and memory; each returns its own figures. Left to the caller: name, memory_bytes.
///
/// Parallel  collective over `world`
/// Effects   allocates some 300 MB
/// Oracle    tests/launch/cluster_calibration_test.cpp: bounds, and steps that are then run
ClusterProfile calibrate_cpu(Communicator& world, const CalibrationOptions& options);

}  // namespace coppice
