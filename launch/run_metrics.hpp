#pragma once
// The steps of metrics.jsonl as curves over steps. Which of them a report shows, and how, is
// run_report's business.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/gnuplot_svg.hpp"

namespace coppice {

struct RunStep {
  std::int64_t step = 0;
  bool skipped = false;
  std::string sharing;  ///< empty: no rows
  /// By the metric's name, those of an object as "seconds.forward"; with "sharing_ratio", logical
  /// rows over rows.
  std::map<std::string, double> figures;

  std::optional<double> figure(const std::string& name) const;
};

struct RunMetrics {
  std::vector<RunStep> steps;  ///< in the order of their numbers
  bool torn = false;           ///< the last line is not whole and left out

  /// Values of one figure in all steps that have it.
  std::vector<double> values(const std::string& name) const;
  /// How many neighbouring steps a point of curve() stands for.
  std::int64_t steps_of_a_point() const;
  /// A figure over steps: each, or the means of neighbours with the least and the most of them
  /// where there are too many to tell apart. Nothing where no step has it.
  std::optional<Curve> curve(const std::string& name, const std::string& title, int color) const;
};

/// Errors    DataError with every line that is no step, or where there is none; IoError
RunMetrics read_run_metrics(const std::filesystem::path& file);

}  // namespace coppice
