#include "launch/study_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "launch/statistics.hpp"

namespace coppice {
namespace {

using Cells = std::vector<std::string>;

Cells joined(Cells left, const Cells& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// A figure of a point, or why there is none.
std::string told(const StudyPoint* point, const std::string& text) {
  if (point == nullptr) return "not run";
  return point->done.empty() ? point->status() : text;
}

std::string seconds_told(const StudyPoint* point) {
  return told(point, point == nullptr ? "" : figure_text(point->figure("step_seconds"), 4));
}

std::string bytes_told(const StudyPoint* point, const char* name) {
  return told(point, point == nullptr ? "" : bytes_text(point->figure(name)));
}

// Grouped and repeated side by side, whichever of them there is.
struct Pair {
  const StudyPoint* any;
  const StudyPoint* grouped;
  const StudyPoint* repeated;
};

std::vector<Pair> pairs_of(const Study& study) {
  std::vector<Pair> pairs;
  for (const StudyPoint& point : study.points) {
    const auto* grouped = study.find(point.setting, point.group_size, "GROUPED");
    const auto* repeated = study.find(point.setting, point.group_size, "REPEATED");
    if (grouped != nullptr ? &point == grouped : &point == repeated)
      pairs.push_back({&point, grouped, repeated});
  }
  return pairs;
}

std::string difference_text(const StudyPoint& point, const StudyPoint& reference,
                            const char* name) {
  const auto difference = difference_of(point, reference, name);
  return difference == 0.0 ? "0" : figure_text(difference, 2);  // 0: to the last bit
}

}  // namespace

std::string grid_text(const GridSizes& grid) {
  return fmt::format("{} x {} x {}", grid.tensor, grid.context, grid.data);
}

StudyNames::StudyNames(const Study& study) {
  std::set<std::string> models, recompute;
  std::set<GridSizes> grids;
  for (const StudyPoint& point : study.points) {
    models.insert(point.setting.workload.model);
    recompute.insert(point.setting.recompute);
    grids.insert(point.setting.grid);
  }
  several_models_ = models.size() > 1;
  several_recompute_ = recompute.size() > 1;
  several_grids_ = grids.size() > 1;
  if (!several_models_ && !models.begin()->empty())
    common_ += fmt::format("model {}; ", *models.begin());
  if (!several_recompute_ && !recompute.begin()->empty())
    common_ += fmt::format("recompute {}; ", *recompute.begin());
  if (!several_grids_)
    common_ += fmt::format("grid {} (tensor x context x data ranks); ", grid_text(*grids.begin()));
  if (!common_.empty())
    common_ = "The same in all points: " + common_.substr(0, common_.size() - 2) + ".";
}

Cells StudyNames::columns() const {
  Cells names;
  if (several_models_) names.emplace_back("model");
  names.insert(names.end(), {"prefix (tokens)", "response (tokens)", "ratio"});
  if (several_recompute_) names.emplace_back("recompute");
  if (several_grids_) names.emplace_back("grid");
  names.emplace_back("group size");
  return names;
}

Cells StudyNames::cells(const StudyPoint& point) const {
  const Setting& setting = point.setting;
  Cells cells;
  if (several_models_) cells.push_back(setting.workload.model);
  cells.push_back(count_text(setting.workload.prefix_length));
  cells.push_back(count_text(setting.workload.response_length));
  cells.push_back(figure_text(point.ratio()));
  if (several_recompute_) cells.push_back(setting.recompute);
  if (several_grids_) cells.push_back(grid_text(setting.grid));
  cells.push_back(count_text(point.group_size));
  return cells;
}

std::string StudyNames::title(const StudyPoint& point, bool with_grid) const {
  const auto& [model, prefix, response] = point.setting.workload;
  std::string text = prefix || response ? fmt::format("prefix {}, response {}", count_text(prefix),
                                                      count_text(response))
                                        : "groups as recorded";
  if (several_models_) text = model + ": " + text;
  if (several_recompute_) text += ", " + point.setting.recompute;
  if (several_grids_ && with_grid) text += ", grid " + grid_text(point.setting.grid);
  return text;
}

std::string StudyNames::common() const { return common_; }

std::optional<double> speedup(const Study& study, const StudyPoint& grouped) {
  const auto* repeated = study.find(grouped.setting, grouped.group_size, "REPEATED");
  if (repeated == nullptr) return std::nullopt;
  return quotient(repeated->figure("step_seconds"), grouped.figure("step_seconds"));
}

std::optional<double> flop_ratio(const Study& study, const StudyPoint& grouped) {
  const auto* repeated = study.find(grouped.setting, grouped.group_size, "REPEATED");
  if (repeated == nullptr) return std::nullopt;
  return quotient(repeated->figure("executed_flops"), grouped.figure("executed_flops"));
}

std::optional<double> difference_of(const StudyPoint& point, const StudyPoint& reference,
                                    const char* name) {
  // A loss whose advantages cancel is zero but for rounding; the size of its terms is the measure.
  const double least =
      std::string_view(name) == "loss" ? point.figure("advantage_abs_mean").value_or(0) : 0;
  return relative_difference(point.figure(name), reference.figure(name), least);
}

ReportTable speedup_table(const Study& study, const StudyNames& names) {
  ReportTable table{
      joined(names.columns(), {"grouped (s)", "repeated (s)", "speed-up", "FLOP ratio",
                               "speed-up / FLOP ratio", "planned speed-up"}),
      {}};
  constexpr const char* kPredicted = "predicted_step_seconds";
  const bool is_predicted = std::any_of(study.points.begin(), study.points.end(),
                                        [](const auto& point) { return point.figure(kPredicted); });
  if (is_predicted)
    table.head = joined(std::move(table.head),
                        {"grouped predicted / measured", "repeated predicted / measured"});
  const auto predicted = [](const StudyPoint* point) {
    return point == nullptr
               ? std::string(kAbsent)
               : figure_text(quotient(point->figure(kPredicted), point->figure("step_seconds")));
  };
  for (const auto& [any, grouped, repeated] : pairs_of(study)) {
    std::optional<double> measured, flops, planned;
    if (grouped != nullptr) {
      measured = speedup(study, *grouped);
      flops = flop_ratio(study, *grouped);
      planned = grouped->figure("predicted_speedup");
    }
    Cells row =
        joined(names.cells(*any),
               {seconds_told(grouped), seconds_told(repeated), figure_text(measured),
                figure_text(flops), figure_text(quotient(measured, flops)), figure_text(planned)});
    if (is_predicted) row = joined(std::move(row), {predicted(grouped), predicted(repeated)});
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable memory_table(const Study& study, const StudyNames& names) {
  ReportTable table{
      joined(names.columns(),
             {"grouped measured", "grouped planned", "planned / measured", "repeated measured",
              "repeated planned", "planned / measured", "repeated / grouped"}),
      {}};
  const auto planned = [](const StudyPoint* point) {
    return point == nullptr ? std::nullopt
                            : quotient(point->figure("predicted_memory_bytes"),
                                       point->figure("peak_memory_bytes"));
  };
  for (const auto& [any, grouped, repeated] : pairs_of(study)) {
    std::optional<double> saved;
    if (grouped != nullptr && repeated != nullptr)
      saved = quotient(repeated->figure("peak_memory_bytes"), grouped->figure("peak_memory_bytes"));
    table.rows.push_back(joined(
        names.cells(*any),
        {bytes_told(grouped, "peak_memory_bytes"), bytes_told(grouped, "predicted_memory_bytes"),
         figure_text(planned(grouped), 4), bytes_told(repeated, "peak_memory_bytes"),
         bytes_told(repeated, "predicted_memory_bytes"), figure_text(planned(repeated), 4),
         figure_text(saved)}));
  }
  return table;
}

ReportTable largest_group_table(const Study& study, const StudyNames& names) {
  ReportTable table{names.columns(), {}};
  table.head.back() = "sharing";  // in place of the group size, which was looked for
  table.head.insert(table.head.end(), {"budget", "largest group size", "memory of that size"});
  for (const LargestGroup& search : study.searches) {
    auto cells = names.cells({search.setting, std::nullopt, search.sharing, {}, 0, 0, {}});
    cells.back() = search.sharing;
    const bool none = search.largest_group_size && *search.largest_group_size < 1;
    const std::string size = count_text(search.largest_group_size);
    table.rows.push_back(joined(std::move(cells), {bytes_text(search.memory_budget_bytes),
                                                   !search.error.empty() ? search.error
                                                   : none                ? "none fits"
                                                   : search.bounded      ? "at least " + size
                                                                         : size,
                                                   bytes_text(search.predicted_memory_bytes)}));
  }
  return table;
}

std::vector<std::string> phases_of(const Study& study) {
  std::vector<std::string> phases = {"plan",      "forward",    "backward",    "reduce",
                                     "optimizer", "checkpoint", "old_logprobs"};
  std::set<std::string> present;
  for (const StudyPoint& point : study.points)
    for (const auto& figures : point.done)
      for (const auto& [name, value] : figures)
        if (name.starts_with("seconds.")) present.insert(name.substr(8));
  std::erase_if(phases, [&](const auto& phase) { return present.erase(phase) == 0; });
  phases.insert(phases.end(), present.begin(), present.end());
  return phases;
}

ReportTable phase_table(const Study& study, const StudyNames& names) {
  const auto phases = phases_of(study);
  ReportTable table{joined(names.columns(), {"sharing", "step (s)"}), {}};
  for (const auto& phase : phases) table.head.push_back(phase + " (s)");
  for (const StudyPoint& point : study.points) {
    Cells row = joined(names.cells(point), {point.sharing, seconds_told(&point)});
    for (const auto& phase : phases) row.push_back(figure_text(point.figure("seconds." + phase)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable equality_table(const Study& study, const StudyNames& names) {
  ReportTable table{
      joined(names.columns(), {"sharing", "compared with", "loss", "gradient norm", "log-probs"}),
      {}};
  for (const StudyPoint& point : study.points) {
    Cells row = joined(names.cells(point), {point.sharing});
    const StudyPoint* reference = study.reference_of(point);
    if (point.done.empty()) {
      row.insert(row.end(), {kAbsent, point.status(), point.status(), point.status()});
    } else if (reference == &point) {
      row.insert(row.end(), {"others are, with this", kAbsent, kAbsent, kAbsent});
    } else {
      row.push_back(fmt::format("{}, grid {}{}", reference->sharing,
                                grid_text(reference->setting.grid),
                                reference->setting.recompute == point.setting.recompute
                                    ? ""
                                    : ", " + reference->setting.recompute));
      row.push_back(difference_text(point, *reference, "loss"));
      row.push_back(difference_text(point, *reference, "grad_norm"));
      row.push_back(figure_text(point.figure("logprob_difference"), 2));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable point_table(const Study& study, const StudyNames& names) {
  ReportTable table{
      joined(names.columns(),
             {"sharing", "status", "repetitions done", "step, median (s)", "least (s)", "most (s)",
              "executed FLOP", "rows", "logical rows", "loss", "gradient norm", "what went wrong"}),
      {}};
  for (const StudyPoint& point : study.points) {
    std::string errors;
    for (const auto& error : point.errors) errors += (errors.empty() ? "" : " / ") + error;
    table.rows.push_back(joined(
        names.cells(point),
        {point.sharing, point.status(), fmt::format("{}", point.done.size()),
         figure_text(point.figure("step_seconds"), 4), figure_text(point.least("step_seconds"), 4),
         figure_text(point.most("step_seconds"), 4), figure_text(point.figure("executed_flops"), 4),
         count_text(point.figure("rows")), count_text(point.figure("logical_rows")),
         figure_text(point.figure("loss"), 6), figure_text(point.figure("grad_norm"), 6),
         errors.empty() ? kAbsent : errors}));
  }
  return table;
}

}  // namespace coppice
