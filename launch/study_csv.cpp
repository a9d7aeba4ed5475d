#include "launch/study_csv.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "launch/statistics.hpp"

namespace coppice {
namespace {

// In a column of the same name, but for the dot.
constexpr std::array kFigures = {"step_seconds",
                                 "seconds.plan",
                                 "seconds.forward",
                                 "seconds.backward",
                                 "seconds.optimizer",
                                 "seconds.reduce",
                                 "seconds.old_logprobs",
                                 "executed_flops",
                                 "rows",
                                 "logical_rows",
                                 "visible_pairs",
                                 "edge_rows",
                                 "peak_memory_bytes",
                                 "predicted_memory_bytes",
                                 "communication_bytes",
                                 "loss",
                                 "grad_norm",
                                 "predicted_speedup",
                                 "predicted_step_seconds"};

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string out = "\"";
  for (const char letter : text) out += letter == '"' ? "\"\"" : std::string(1, letter);
  return out + "\"";
}

std::string text_of(const std::optional<double>& value) {
  if (!value) return {};
  if (*value == std::floor(*value) && std::abs(*value) < 1e15) return fmt::format("{:.0f}", *value);
  return fmt::format("{}", *value);
}

// What the records of one point come to.
struct Row {
  const SweepPoint* point;
  std::vector<const StudyRecord*> ok;
  const StudyRecord* failed = nullptr;

  std::optional<double> figure(const char* name) const {
    std::vector<double> values;
    for (const StudyRecord* record : ok)
      if (const auto value = record->figure(name)) values.push_back(*value);
    return median(std::move(values));
  }
  std::string status() const {
    if (failed != nullptr) return failed->status;
    return ok.empty() ? "" : std::string(study_status::kOk);
  }
};

std::vector<Row> rows_of(const std::vector<SweepPoint>& points,
                         const std::vector<StudyRecord>& records) {
  std::vector<Row> rows;
  for (const SweepPoint& point : points) rows.push_back({&point, {}, nullptr});
  for (const StudyRecord& record : records) {
    Row& row = rows.at(record.run.point);
    if (record.ok())
      row.ok.push_back(&record);
    else
      row.failed = &record;
  }
  return rows;
}

}  // namespace

std::string study_csv(const std::vector<SweepPoint>& points, const std::vector<std::string>& models,
                      const std::vector<StudyRecord>& records) {
  const std::vector<Row> rows = rows_of(points, records);
  const bool has_lengths = !points.empty() && points[0].prefix_length > 0;
  std::vector<std::string> names;
  if (!models.empty()) names.emplace_back("model");
  if (has_lengths) names.insert(names.end(), {"prefix_length", "response_length", "group_size"});
  names.insert(names.end(),
               {"sharing", "recompute", "tensor", "context", "data", "status", "repetitions"});
  for (std::string name : kFigures) {
    std::replace(name.begin(), name.end(), '.', '_');
    names.push_back(std::move(name));
  }
  names.insert(names.end(), {"gflops_per_second", "speedup", "loss_difference",
                             "grad_norm_difference", "logprob_difference", "error"});
  std::string table = fmt::format("{}\n", fmt::join(names, ","));

  for (const Row& row : rows) {
    const SweepPoint& point = *row.point;
    std::vector<std::string> fields;
    if (!models.empty()) fields.push_back(quoted(models.at(point.model)));
    if (has_lengths)
      for (const auto length : {point.prefix_length, point.response_length, point.group_size})
        fields.push_back(std::to_string(length));
    fields.insert(fields.end(),
                  {point.sharing, point.recompute, std::to_string(point.grid.tensor),
                   std::to_string(point.grid.context), std::to_string(point.grid.data),
                   row.status(), std::to_string(row.ok.size())});
    for (const char* name : kFigures) fields.push_back(text_of(row.figure(name)));
    const auto flops = quotient(row.figure("executed_flops"), row.figure("step_seconds"));
    fields.push_back(flops ? fmt::format("{:.6g}", *flops / 1e9) : "");

    const Row* repeated = nullptr;
    std::optional<double> logprobs;
    for (const Row& other : rows) {
      if (same_but_sharing(*other.point, point) && other.point->sharing == "REPEATED" &&
          point.sharing != "REPEATED")
        repeated = &other;
      if (same_groups(*other.point, point) && !logprobs)
        logprobs = other.figure("logprob_difference");
    }
    if (repeated != nullptr) {
      fields.push_back(
          text_of(quotient(repeated->figure("step_seconds"), row.figure("step_seconds"))));
      fields.push_back(text_of(relative_difference(row.figure("loss"), repeated->figure("loss"),
                                                   row.figure("advantage_abs_mean").value_or(0))));
      fields.push_back(
          text_of(relative_difference(row.figure("grad_norm"), repeated->figure("grad_norm"))));
      fields.push_back(text_of(logprobs));
    } else {
      fields.insert(fields.end(), 4, "");
    }
    fields.push_back(row.failed == nullptr ? "" : quoted(row.failed->error));
    table += fmt::format("{}\n", fmt::join(fields, ","));
  }
  return table;
}

}  // namespace coppice
