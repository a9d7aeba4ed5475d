#pragma once
// The tables of a study's report, each worked out of its points alone. What stands around them,
// and in which format, is study_report's business.
#include "launch/report_table.hpp"
#include "launch/study_points.hpp"

namespace coppice {

/// What points differ in, and how a table, a plot and a sentence name that.
class StudyNames {
 public:
  explicit StudyNames(const Study& study);

  /// Column names of what settings differ in: prefix, response and ratio always, model,
  /// recomputation and grid where the study has several.
  std::vector<std::string> columns() const;
  std::vector<std::string> cells(const StudyPoint& point) const;
  /// "P 128, R 32, ratio 4", with what else differs. `with_grid`: also the grid.
  std::string title(const StudyPoint& point, bool with_grid = true) const;
  /// What is the same in all points, as sentences.
  std::string common() const;

 private:
  bool several_models_ = false, several_recompute_ = false, several_grids_ = false;
  std::string common_;
};

/// "2 x 1 x 1": tensor x context x data
std::string grid_text(const GridSizes& grid);

/// Repeated over grouped, of medians; nothing where either is absent.
std::optional<double> speedup(const Study& study, const StudyPoint& grouped);
/// The same of executed_flops.
std::optional<double> flop_ratio(const Study& study, const StudyPoint& grouped);

/// How far a figure of two points that compute the same is apart, relatively; nothing where a point
/// lacks it. A loss is measured against the mean size of an advantage where that is larger.
std::optional<double> difference_of(const StudyPoint& point, const StudyPoint& reference,
                                    const char* name);

ReportTable speedup_table(const Study& study, const StudyNames& names);
ReportTable memory_table(const Study& study, const StudyNames& names);
ReportTable largest_group_table(const Study& study, const StudyNames& names);
ReportTable phase_table(const Study& study, const StudyNames& names);
ReportTable equality_table(const Study& study, const StudyNames& names);
/// Every point, also those that are not done, with what went wrong.
ReportTable point_table(const Study& study, const StudyNames& names);

/// Phases that any point tells, in the order of a step.
std::vector<std::string> phases_of(const Study& study);

}  // namespace coppice
