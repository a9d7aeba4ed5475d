#pragma once
// The drawings of a study's report: one small plot for each setting, so that each is readable on a
// phone. What they show in figures is in study_tables.
#include <string>
#include <vector>

#include "launch/gnuplot_svg.hpp"
#include "launch/study_points.hpp"
#include "launch/study_scaling.hpp"
#include "launch/study_tables.hpp"

namespace coppice {

std::vector<std::string> speedup_plots(const Study& study, const StudyNames& names,
                                       SvgDrawer& drawer);
std::vector<std::string> memory_plots(const Study& study, const StudyNames& names,
                                      SvgDrawer& drawer);
std::vector<std::string> phase_plots(const Study& study, const StudyNames& names,
                                     SvgDrawer& drawer);
/// Efficiency and communication share over ranks, by the axis that the ranks are on.
std::vector<std::string> scaling_plots(const std::vector<ScalingFamily>& families,
                                       SvgDrawer& drawer);

}  // namespace coppice
