#include "launch/study_scaling.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace coppice {
namespace {

std::optional<double> rate_of(const StudyPoint& point) {
  const auto flops = point.figure("executed_flops"), seconds = point.figure("step_seconds");
  if (!flops || !seconds || *seconds <= 0) return std::nullopt;
  return *flops / *seconds;
}

double ranks_of(const StudyPoint& point) { return static_cast<double>(point.setting.grid.ranks()); }

bool of_one_family(const StudyPoint& a, const StudyPoint& b) {
  return a.setting.workload == b.setting.workload && a.setting.recompute == b.setting.recompute &&
         a.sharing == b.sharing;
}

// Points of the study that belong to `first`, which has the fewest ranks among them.
template <class Belongs>
std::optional<ScalingFamily> family_of(const Study& study, const StudyPoint& first,
                                       const Belongs& belongs) {
  ScalingFamily family;
  for (const StudyPoint& point : study.points)
    if (&point == &first || (of_one_family(point, first) && belongs(point)))
      family.points.push_back({&point, &first, {}, {}});
  const auto ranks = [](const ScaledPoint& scaled) { return scaled.point->setting.grid.ranks(); };
  std::stable_sort(family.points.begin(), family.points.end(),
                   [&](const auto& a, const auto& b) { return ranks(a) < ranks(b); });
  if (family.points.size() < 2) return std::nullopt;
  for (ScaledPoint& scaled : family.points) {
    const auto rate = rate_of(*scaled.point), one = rate_of(first);
    if (!rate || !one) continue;
    scaled.speedup = *rate / *one;
    scaled.efficiency = *scaled.speedup * ranks_of(first) / ranks_of(*scaled.point);
  }
  return family;
}

// Whether no point of its work has fewer ranks; of several with as few the first counts.
bool is_first(const Study& study, const StudyPoint& point) {
  for (const StudyPoint& other : study.points) {
    if (!of_one_family(other, point) || other.group_size != point.group_size) continue;
    if (other.setting.grid.ranks() < point.setting.grid.ranks()) return false;
    if (other.setting.grid.ranks() == point.setting.grid.ranks()) return &other == &point;
  }
  return true;
}

}  // namespace

std::vector<ScalingFamily> strong_scaling(const Study& study, const StudyNames& names) {
  std::vector<ScalingFamily> families;
  for (const StudyPoint& first : study.points) {
    if (!is_first(study, first)) continue;
    auto family = family_of(study, first, [&](const StudyPoint& point) {
      return point.group_size == first.group_size;
    });
    if (!family) continue;
    family->title = fmt::format("{}, group size {:g}, {}", names.title(first, false),
                                first.group_size.value_or(0), first.sharing);
    families.push_back(std::move(*family));
  }
  return families;
}

std::vector<ScalingFamily> weak_scaling(const Study& study, const StudyNames& names) {
  std::vector<ScalingFamily> families;
  for (const StudyPoint& first : study.points) {
    if (!is_first(study, first) || !first.group_size) continue;
    const double of_a_rank = *first.group_size / ranks_of(first);
    auto family = family_of(study, first, [&](const StudyPoint& point) {
      return point.setting.grid.ranks() > first.setting.grid.ranks() &&
             point.group_size == of_a_rank * ranks_of(point);
    });
    if (!family) continue;
    family->title = fmt::format("{}, {:g} responses a rank, {}", names.title(first, false),
                                of_a_rank, first.sharing);
    families.push_back(std::move(*family));
  }
  return families;
}

std::optional<double> communication_seconds(const StudyPoint& point) {
  std::optional<double> sum;
  for (const char* axis : {"tensor", "context", "data", "replicas", "shared_key_value", "world"})
    if (const auto seconds = point.figure(fmt::format("communication.{}.seconds", axis)))
      sum = sum.value_or(0) + *seconds;
  return sum ? sum : point.figure("seconds.reduce");
}

std::optional<double> communication_share(const StudyPoint& point) {
  const auto seconds = communication_seconds(point), step = point.figure("step_seconds");
  if (!seconds || !step || *step <= 0) return std::nullopt;
  return *seconds / *step;
}

ReportTable scaling_table(const std::vector<ScalingFamily>& families, const StudyNames& names) {
  ReportTable table{names.columns(), {}};
  table.head.insert(table.head.end(), {"sharing", "ranks", "step (s)", "speed-up", "efficiency",
                                       "bytes sent", "communication (s)", "communication share"});
  for (const ScalingFamily& family : families) {
    for (const ScaledPoint& scaled : family.points) {
      const StudyPoint& point = *scaled.point;
      auto row = names.cells(point);
      row.insert(
          row.end(),
          {point.sharing, fmt::format("{}", point.setting.grid.ranks()),
           point.done.empty() ? point.status() : figure_text(point.figure("step_seconds"), 4),
           figure_text(scaled.speedup), percent_text(scaled.efficiency),
           bytes_text(point.figure("communication_bytes")),
           figure_text(communication_seconds(point)), percent_text(communication_share(point))});
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace coppice
