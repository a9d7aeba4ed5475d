#pragma once
// What more ranks buy in a study: the same work on more of them, and groups that grow with them,
// each with what communication takes of it.
#include "launch/study_points.hpp"
#include "launch/study_tables.hpp"

namespace coppice {

/// One point beside the first of its family, which has the fewest ranks.
struct ScaledPoint {
  const StudyPoint* point;
  const StudyPoint* first;
  std::optional<double> speedup;     ///< of the rate of work: FLOP/s over those of the first
  std::optional<double> efficiency;  ///< the same, of a rank
};

/// Points of the same work on different grids; families of one are left out.
struct ScalingFamily {
  std::string title;                ///< what its points share
  std::vector<ScaledPoint> points;  ///< by ranks
};

/// Strong: the same workload, group size, sharing and recomputation.
std::vector<ScalingFamily> strong_scaling(const Study& study, const StudyNames& names);
/// Weak: the same but for the group size, which is the first's times ranks / the first's ranks.
std::vector<ScalingFamily> weak_scaling(const Study& study, const StudyNames& names);

/// Seconds of a step in collectives, waiting included: summed over the axes that a point tells,
/// each of its slowest rank, so that it may exceed what one rank spends; else `seconds.reduce`.
std::optional<double> communication_seconds(const StudyPoint& point);
/// The same over `step_seconds`.
std::optional<double> communication_share(const StudyPoint& point);

ReportTable scaling_table(const std::vector<ScalingFamily>& families, const StudyNames& names);

}  // namespace coppice
