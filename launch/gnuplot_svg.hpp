#pragma once
// Drawings for reports: curves and stacked bars with labelled axes, as what stands in a figure of
// an HTML page: a caption and an SVG element. gnuplot draws them; what to draw and where it goes is
// the reports' business.
#include <string>
#include <vector>

namespace coppice {

enum class CurveStyle {
  kLine,        ///< measured, too many points to show each
  kLinePoints,  ///< measured
  kDashed,      ///< foretold
  kPoints,
  kCrosses,  ///< what could not be measured
};

struct Curve {
  std::string name;  ///< for the legend
  CurveStyle style = CurveStyle::kLinePoints;
  int color = 0;  ///< curves of one thing share it
  std::vector<double> x, y;
  std::vector<double> low = {}, high = {};  ///< of each point; empty: not drawn
};

enum class Scale { kLinear, kLogarithmic };

struct CurvePlot {
  std::string title, x_label, y_label;  ///< labels name the unit in parentheses
  std::vector<Curve> curves;
  Scale x_scale = Scale::kLinear;
  bool from_zero = true;  ///< the y axis begins at 0, unless a value is below
  /// Ticks of x at the values that occur, not at round numbers.
  bool ticks_at_points = false;
};

/// One bar for each name, each a stack of the same parts from the bottom up.
struct BarPlot {
  std::string title, x_label, y_label;
  std::vector<std::string> bars, parts;
  std::vector<std::vector<double>> heights;  ///< [bars][parts]
};

/// Errors    IoError where there is no gnuplot, with what to do, or it fails, with what it says
/// Repeats   the same bytes with the same gnuplot
class SvgDrawer {
 public:
  std::string draw(const CurvePlot& plot);
  std::string draw(const BarPlot& plot);

 private:
  std::string finish(const std::string& script, const std::string& title, int height);

  int count_ = 0;  // for names that are unique in the page
};

}  // namespace coppice
