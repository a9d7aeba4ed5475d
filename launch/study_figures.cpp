#include "launch/study_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "core/error.hpp"
#include "launch/statistics.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
    if (!lines.back().is_object())
      throw DataError({fmt::format("{}:{}: is no JSON object.", path.string(), lines.size())});
  }
  return lines;
}

// The values of a figure over the steps that have it.
std::vector<double> values_of(std::span<const Json> steps, const std::string& name) {
  std::vector<double> values;
  const auto dot = name.find('.');
  for (const Json& step : steps) {
    const std::string outer = name.substr(0, dot);
    if (!step.contains(outer)) continue;
    const Json& block = step[outer];
    if (dot == name.npos && block.is_number()) values.push_back(block.get<double>());
    if (dot != name.npos && block.contains(name.substr(dot + 1)))
      values.push_back(block[name.substr(dot + 1)].get<double>());
  }
  return values;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

StudyFigures figures_of_run(const fs::path& metrics, std::int64_t warmup_steps,
                            std::int64_t steps) {
  const std::vector<Json> lines = lines_of(metrics);
  if (std::ssize(lines) != warmup_steps + steps)
    throw DataError({fmt::format("{} of {} steps were done.", lines.size(), warmup_steps + steps)});
  const auto skipped = std::count_if(lines.begin(), lines.end(),
                                     [](const Json& line) { return line.value("skipped", false); });
  if (skipped > 0)
    throw DataError({fmt::format(
        "{} of {} steps were skipped (no token in the loss, or a loss or gradient norm that is not "
        "finite).",
        skipped, lines.size())});
  const std::span<const Json> all(lines);
  const auto measured = all.subspan(static_cast<std::size_t>(warmup_steps));
  constexpr std::array kMedians = {"step_seconds",        "seconds.plan",      "seconds.forward",
                                   "seconds.backward",    "seconds.optimizer", "seconds.reduce",
                                   "seconds.old_logprobs"};
  constexpr std::array kMeans = {
      "executed_flops", "rows",           "logical_rows",         "visible_pairs",
      "edge_rows",      "alignment_rows", "loss_tokens",          "groups",
      "responses",      "microbatches",   "response_length_mean", "communication_bytes"};
  constexpr std::array kPeaks = {"peak_memory_bytes", "peak_resident_bytes"};
  constexpr std::array kFirst = {"loss", "grad_norm", "advantage_abs_mean"};
  StudyFigures figures;
  for (const std::string name : kMedians)
    if (auto values = values_of(measured, name); !values.empty())
      figures.emplace_back(name, *median(std::move(values)));
  for (const std::string name : kMeans)
    if (const auto values = values_of(measured, name); !values.empty())
      figures.emplace_back(name, mean(values));
  for (const std::string name : kPeaks)
    if (const auto values = values_of(measured, name); !values.empty())
      figures.emplace_back(name, *std::max_element(values.begin(), values.end()));
  for (const std::string name : kFirst)
    if (const auto values = values_of(all.first(1), name); !values.empty())
      figures.emplace_back(name, values[0]);
  return figures;
}

double logprob_difference(const fs::path& a, const fs::path& b) {
  const auto groups_a = lines_of(a), groups_b = lines_of(b);
  const DataError unlike(
      {fmt::format("{} and {} are not scores of the same groups.", a.string(), b.string())});
  if (groups_a.size() != groups_b.size()) throw unlike;
  double most = 0;
  for (std::size_t g = 0; g < groups_a.size(); ++g) {
    const Json &responses_a = groups_a[g]["responses"], &responses_b = groups_b[g]["responses"];
    if (responses_a.size() != responses_b.size()) throw unlike;
    for (std::size_t r = 0; r < responses_a.size(); ++r) {
      const auto logprobs_a = responses_a[r]["logprobs"].get<std::vector<double>>();
      const auto logprobs_b = responses_b[r]["logprobs"].get<std::vector<double>>();
      if (logprobs_a.size() != logprobs_b.size()) throw unlike;
      for (std::size_t i = 0; i < logprobs_a.size(); ++i)
        most = std::max(most, std::abs(logprobs_a[i] - logprobs_b[i]));
    }
  }
  return most;
}

}  // namespace coppice
