#include "launch/study_sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "rl/group_source.hpp"

namespace coppice {
namespace {

using Lengths = std::vector<std::int64_t>;

// Recorded groups are one value of each axis of lengths.
Lengths or_recorded(const Lengths& values) { return values.empty() ? Lengths{0} : values; }

auto groups_of(const SweepPoint& point) {
  return std::tie(point.model, point.prefix_length, point.response_length, point.group_size);
}

auto grid_of(const SweepPoint& point) {
  return std::tie(point.grid.tensor, point.grid.context, point.grid.data);
}

}  // namespace

std::int64_t point_count(std::size_t models, const StudySweep& sweep) {
  std::int64_t count = static_cast<std::int64_t>(models);
  for (const std::size_t values :
       {or_recorded(sweep.prefix_length).size(), or_recorded(sweep.response_length).size(),
        or_recorded(sweep.group_size).size(), sweep.sharing.size(), sweep.recompute.size(),
        sweep.grid.size()})
    count = saturating_product(count, static_cast<std::int64_t>(values));
  return count;
}

std::vector<SweepPoint> points_of(std::size_t models, const StudySweep& sweep) {
  std::vector<SweepPoint> points;
  for (std::size_t model = 0; model < models; ++model)
    for (const auto prefix : or_recorded(sweep.prefix_length))
      for (const auto response : or_recorded(sweep.response_length))
        for (const auto group_size : or_recorded(sweep.group_size))
          for (const auto& recompute : sweep.recompute)
            for (const auto& grid : sweep.grid)
              for (const auto& sharing : sweep.sharing)
                points.push_back({model, prefix, response, group_size, sharing, recompute, grid});
  return points;
}

std::vector<StudyRun> runs_of(const std::vector<SweepPoint>& points, std::int64_t repetitions) {
  std::vector<StudyRun> runs;
  for (std::int64_t repetition = 0; repetition < repetitions; ++repetition)
    for (std::size_t begin = 0; begin < points.size();) {
      std::size_t end = begin;
      while (end < points.size() && same_but_sharing(points[begin], points[end])) ++end;
      const auto first = runs.size();
      for (std::size_t point = begin; point < end; ++point) runs.push_back({point, repetition});
      if (repetition % 2 == 1)
        std::reverse(runs.begin() + static_cast<std::ptrdiff_t>(first), runs.end());
      begin = end;
    }
  return runs;
}

bool same_groups(const SweepPoint& a, const SweepPoint& b) { return groups_of(a) == groups_of(b); }

bool same_but_sharing(const SweepPoint& a, const SweepPoint& b) {
  return same_groups(a, b) && a.recompute == b.recompute && grid_of(a) == grid_of(b);
}

std::string description_of(const SweepPoint& point) {
  std::string text;
  if (point.prefix_length > 0)
    text = fmt::format("P={} R={} G={} ", point.prefix_length, point.response_length,
                       point.group_size);
  text += point.sharing;
  if (point.recompute != "NONE") text += " " + point.recompute;
  if (point.grid.ranks() > 1)
    text += fmt::format(" tensor {} context {} data {}", point.grid.tensor, point.grid.context,
                        point.grid.data);
  return text;
}

}  // namespace coppice
