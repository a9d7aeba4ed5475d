#pragma once
// What a study consists of: its sweep as plain values, every combination of it as a point, and the
// order in which the points' runs take place.
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/process_grid.hpp"

namespace coppice {

/// Each list has at least one value; without lengths (recorded groups) the first three have none.
struct StudySweep {
  std::vector<std::int64_t> prefix_length, response_length, group_size;
  std::vector<std::string> sharing;    ///< "GROUPED", "REPEATED", "AUTO"
  std::vector<std::string> recompute;  ///< "NONE", "SELECTIVE", "BLOCK"
  std::vector<GridSizes> grid;
};

/// One combination.
struct SweepPoint {
  std::size_t model = 0;  ///< index among the study's models
  std::int64_t prefix_length = 0, response_length = 0, group_size = 0;  ///< 0: recorded groups
  std::string sharing, recompute;
  GridSizes grid;
};

/// One run of one point.
struct StudyRun {
  std::size_t point = 0;  ///< index among the study's points
  std::int64_t repetition = 0;
};

/// The number of combinations; the largest number where it is beyond that.
std::int64_t point_count(std::size_t models, const StudySweep& sweep);

/// Every combination: models outermost, then the axes in the sweep's order but sharing, which runs
/// fastest, so that points that differ in nothing else stand side by side.
std::vector<SweepPoint> points_of(std::size_t models, const StudySweep& sweep);

/// All runs in their order. A repetition goes once through all points, so that a study that is
/// stopped has every point as often as every other one, but for one. Sharing modes of one
/// combination follow one another directly, and in the reverse order in every other repetition, so
/// that a machine that grows slower or faster does so for both.
std::vector<StudyRun> runs_of(const std::vector<SweepPoint>& points, std::int64_t repetitions);

/// The points differ in nothing but sharing.
bool same_but_sharing(const SweepPoint& a, const SweepPoint& b);
/// The same groups of the same model, however they are run.
bool same_groups(const SweepPoint& a, const SweepPoint& b);

/// "P=128 R=32 G=8 GROUPED", with recompute and grid where they are not the plain ones.
std::string description_of(const SweepPoint& point);

}  // namespace coppice
