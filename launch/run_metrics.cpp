#include "launch/run_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace coppice {
namespace {

using Json = nlohmann::json;

void put_figures(const Json& object, const std::string& before,
                 std::map<std::string, double>& figures) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) figures[before + name] = value.get<double>();
    if (value.is_object()) put_figures(value, before + name + ".", figures);
  }
}

std::optional<RunStep> step_of(const Json& line) {
  if (!line.is_object()) return std::nullopt;
  RunStep step;
  put_figures(line, "", step.figures);
  const auto number = step.figure("step");
  if (!number) return std::nullopt;
  step.step = static_cast<std::int64_t>(*number);
  if (const auto skipped = line.find("skipped"); skipped != line.end())
    step.skipped = *skipped == true;
  if (const auto sharing = line.find("sharing"); sharing != line.end() && sharing->is_string())
    step.sharing = sharing->get<std::string>();
  const auto rows = step.figure("rows"), logical = step.figure("logical_rows");
  if (rows && logical && *rows > 0) step.figures["sharing_ratio"] = *logical / *rows;
  return step;
}

}  // namespace

std::optional<double> RunStep::figure(const std::string& name) const {
  const auto found = figures.find(name);
  return found == figures.end() ? std::nullopt : std::optional(found->second);
}

std::vector<double> RunMetrics::values(const std::string& name) const {
  std::vector<double> all;
  for (const RunStep& step : steps)
    if (const auto value = step.figure(name)) all.push_back(*value);
  return all;
}

std::int64_t RunMetrics::steps_of_a_point() const {
  constexpr std::int64_t kMostPoints = 400;  // as many as a plot is wide
  return std::max<std::int64_t>(1, (std::ssize(steps) + kMostPoints - 1) / kMostPoints);
}

std::optional<Curve> RunMetrics::curve(const std::string& name, const std::string& title,
                                       int color) const {
  constexpr std::size_t kFewPoints = 40;
  Curve curve{title, CurveStyle::kLine, color, {}, {}};
  const auto neighbours = static_cast<std::size_t>(steps_of_a_point());
  for (std::size_t begin = 0; begin < steps.size(); begin += neighbours) {
    const std::size_t end = std::min(begin + neighbours, steps.size());
    std::vector<double> values;
    double sum = 0, place = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const auto value = steps[i].figure(name);
      if (!value) continue;
      values.push_back(*value);
      sum += *value;
      place += static_cast<double>(steps[i].step);
    }
    if (values.empty()) continue;
    const auto count = static_cast<double>(values.size());
    curve.x.push_back(place / count);
    curve.y.push_back(sum / count);
    if (neighbours == 1) continue;
    curve.low.push_back(*std::min_element(values.begin(), values.end()));
    curve.high.push_back(*std::max_element(values.begin(), values.end()));
  }
  if (curve.x.empty()) return std::nullopt;
  if (curve.x.size() <= kFewPoints) curve.style = CurveStyle::kLinePoints;
  return curve;
}

RunMetrics read_run_metrics(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw IoError(fmt::format("{} cannot be read. Give a run's directory.", path.string()));
  RunMetrics metrics;
  Problems problems;
  std::int64_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    auto step = step_of(Json::parse(text, nullptr, false));
    if (step)
      metrics.steps.push_back(std::move(*step));
    else if (file.eof())
      metrics.torn = true;  // a run that was killed, or writes just now
    else
      problems.add("{}:{}: is no step of a run. Remove the line.", path.string(), number);
  }
  if (metrics.steps.empty() && problems.empty())
    problems.add("{}: has no steps (nothing to report). Wait for the run's first.", path.string());
  problems.throw_if_any<DataError>();
  std::stable_sort(metrics.steps.begin(), metrics.steps.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  return metrics;
}

}  // namespace coppice
