#include "launch/study_plots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace coppice {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr const char* kGroupSize = "group size (responses)";

// The points of one setting: neighbours, since the points are in order of settings.
struct Block {
  const StudyPoint* begin;
  const StudyPoint* end;
};

std::vector<Block> blocks_of(const Study& study) {
  std::vector<Block> blocks;
  for (const StudyPoint& point : study.points) {
    if (blocks.empty() || blocks.back().begin->setting != point.setting)
      blocks.push_back({&point, &point});
    blocks.back().end = &point + 1;
  }
  return blocks;
}

void add(Curve& curve, std::optional<double> x, std::optional<double> y, double unit = 1) {
  if (!x || !y) return;
  curve.x.push_back(*x);
  curve.y.push_back(*y / unit);
}

// A cross on the axis where a point of the plot is not done.
void add_cross(Curve& crosses, std::initializer_list<const StudyPoint*> points) {
  for (const StudyPoint* point : points)
    if (point != nullptr && point->done.empty()) return add(crosses, point->group_size, 0.0);
}

std::vector<Curve> drawn(std::vector<Curve> curves) {
  std::erase_if(curves, [](const Curve& curve) { return curve.x.empty(); });
  return curves;
}

CurvePlot over_group_size(std::string title, std::string y_label, std::vector<Curve> curves) {
  return {std::move(title),         kGroupSize,          std::move(y_label),
          drawn(std::move(curves)), Scale::kLogarithmic, /*from_zero=*/true,
          /*ticks_at_points=*/true};
}

}  // namespace

std::vector<std::string> speedup_plots(const Study& study, const StudyNames& names,
                                       SvgDrawer& drawer) {
  std::vector<std::string> drawings;
  for (const auto& [begin, end] : blocks_of(study)) {
    Curve measured{"measured", CurveStyle::kLinePoints, 0, {}, {}, {}};
    Curve flops{"FLOP ratio", CurveStyle::kDashed, 1, {}, {}, {}};
    Curve crosses{"not done", CurveStyle::kCrosses, 7, {}, {}};
    for (const StudyPoint* point = begin; point != end; ++point) {
      if (point->sharing != "GROUPED") continue;
      const auto* repeated = study.find(point->setting, point->group_size, "REPEATED");
      if (repeated == nullptr) continue;
      add_cross(crosses, {point, repeated});
      if (const auto gain = speedup(study, *point)) {
        add(measured, point->group_size, gain);
        measured.low.push_back(*repeated->least("step_seconds") / *point->most("step_seconds"));
        measured.high.push_back(*repeated->most("step_seconds") / *point->least("step_seconds"));
      }
      add(flops, point->group_size, flop_ratio(study, *point));
    }
    if (measured.low.size() != measured.x.size()) measured.low.clear(), measured.high.clear();
    auto plot = over_group_size(names.title(*begin), "repeated / grouped (times)",
                                {std::move(measured), std::move(flops), std::move(crosses)});
    if (!plot.curves.empty()) drawings.push_back(drawer.draw(plot));
  }
  return drawings;
}

std::vector<std::string> memory_plots(const Study& study, const StudyNames& names,
                                      SvgDrawer& drawer) {
  std::vector<std::string> drawings;
  for (const auto& [begin, end] : blocks_of(study)) {
    std::vector<Curve> curves = {{"grouped", CurveStyle::kLinePoints, 0, {}, {}, {}},
                                 {"planned", CurveStyle::kDashed, 0, {}, {}, {}},
                                 {"repeated", CurveStyle::kLinePoints, 1, {}, {}, {}},
                                 {"planned", CurveStyle::kDashed, 1, {}, {}, {}},
                                 {"not done", CurveStyle::kCrosses, 0, {}, {}, {}},
                                 {"not done", CurveStyle::kCrosses, 1, {}, {}, {}}};
    for (const StudyPoint* point = begin; point != end; ++point) {
      const std::size_t at = point->sharing == "GROUPED" ? 0 : 2;
      add_cross(curves[point->sharing == "GROUPED" ? 4 : 5], {point});
      add(curves[at], point->group_size, point->figure("peak_memory_bytes"), kMiB);
      add(curves[at + 1], point->group_size, point->figure("predicted_memory_bytes"), kMiB);
    }
    auto plot =
        over_group_size(names.title(*begin), "peak memory of a rank (MiB)", std::move(curves));
    if (!plot.curves.empty()) drawings.push_back(drawer.draw(plot));
  }
  return drawings;
}

std::vector<std::string> phase_plots(const Study& study, const StudyNames& names,
                                     SvgDrawer& drawer) {
  std::vector<std::string> drawings;
  for (const auto& [begin, end] : blocks_of(study)) {
    BarPlot plot{names.title(*begin),  "group size (responses), g or r",
                 "time of a step (s)", {},
                 phases_of(study),     {}};
    for (const StudyPoint* point = begin; point != end; ++point) {
      plot.bars.push_back(fmt::format("{:g}{}{}", point->group_size.value_or(0),
                                      point->sharing == "GROUPED"    ? "g"
                                      : point->sharing == "REPEATED" ? "r"
                                                                     : point->sharing,
                                      point->done.empty() ? " ×" : ""));
      auto& heights = plot.heights.emplace_back();
      for (const auto& phase : plot.parts)
        heights.push_back(point->figure("seconds." + phase).value_or(0));
    }
    if (!plot.bars.empty() && !plot.parts.empty()) drawings.push_back(drawer.draw(plot));
  }
  return drawings;
}

std::vector<std::string> scaling_plots(const std::vector<ScalingFamily>& families,
                                       SvgDrawer& drawer) {
  std::vector<std::string> drawings;
  for (const ScalingFamily& family : families) {
    std::vector<Curve> curves = {{"tensor ranks", CurveStyle::kLinePoints, 0, {}, {}, {}},
                                 {"context ranks", CurveStyle::kLinePoints, 1, {}, {}, {}},
                                 {"data ranks", CurveStyle::kLinePoints, 2, {}, {}, {}},
                                 {"several axes", CurveStyle::kPoints, 3, {}, {}, {}}};
    Curve share{"communication", CurveStyle::kPoints, 7, {}, {}, {}};
    const auto percent = [](std::optional<double> value) {
      return value ? std::optional(100 * *value) : std::nullopt;
    };
    for (const ScaledPoint& scaled : family.points) {
      const GridSizes& grid = scaled.point->setting.grid;
      const auto ranks = static_cast<double>(grid.ranks());
      const bool t = grid.tensor > 1, c = grid.context > 1, d = grid.data > 1;
      // One rank begins every axis.
      const bool one = !t && !c && !d;
      if (one || (t && !c && !d)) add(curves[0], ranks, percent(scaled.efficiency));
      if (one || (c && !t && !d)) add(curves[1], ranks, percent(scaled.efficiency));
      if (one || (d && !t && !c)) add(curves[2], ranks, percent(scaled.efficiency));
      if (t + c + d > 1) add(curves[3], ranks, percent(scaled.efficiency));
      add(share, ranks, percent(communication_share(*scaled.point)));
    }
    // An axis whose only point is the first one was not tried.
    std::erase_if(curves, [](const Curve& curve) {
      return curve.x.empty() || (curve.x.size() == 1 && curve.x[0] == 1);
    });
    if (curves.empty()) continue;
    curves.push_back(std::move(share));
    drawings.push_back(
        drawer.draw(CurvePlot{family.title, "ranks (count)", "efficiency, share of the step (%)",
                              drawn(std::move(curves)), Scale::kLogarithmic,
                              /*from_zero=*/true, /*ticks_at_points=*/true}));
  }
  return drawings;
}

}  // namespace coppice
