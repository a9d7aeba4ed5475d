#include "launch/study_points.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "launch/statistics.hpp"
#include "launch/study_records.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Numbers and names of a line; a name of another type counts as absent.
std::optional<double> number(const Json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string word(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

int ranks_along(const Json& line, const char* name) {
  return static_cast<int>(number(line, name).value_or(1));
}

Setting setting_of(const Json& line) {
  return {{word(line, "model"), number(line, "prefix_length"), number(line, "response_length")},
          word(line, "recompute"),
          {ranks_along(line, "tensor"), ranks_along(line, "context"), ranks_along(line, "data")}};
}

void put_figures(const Json& object, const std::string& before,
                 std::map<std::string, double>& figures) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) figures[before + name] = value.get<double>();
    if (value.is_object()) put_figures(value, before + name + ".", figures);
  }
}

void add_once(std::vector<std::string>& texts, const std::string& text) {
  if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end())
    texts.push_back(text);
}

// Every whole line that is an object. True: the last line is torn.
bool read_lines(const fs::path& path, Problems& problems,
                const std::function<void(const Json&, const std::string& place)>& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw IoError(fmt::format("{} cannot be read. Give a study's out_dir.", path.string()));
  std::string text;
  std::int64_t number = 0;
  while (std::getline(file, text)) {
    ++number;
    const std::string place = fmt::format("{}:{}", path.string(), number);
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_object()) {
      take(line, place);
    } else if (file.eof()) {
      return true;
    } else {
      problems.add("{}: is not a JSON object. Remove the line, or run the study again.", place);
    }
  }
  return false;
}

using study_status::kFailed, study_status::kOk, study_status::kOutOfMemory;

void check_point(const Json& line, const std::string& place, Problems& problems) {
  const std::string status = word(line, "status");
  if (status != kOk && status != kOutOfMemory && status != kFailed)
    problems.add("{}: status is \"{}\", not ok, out_of_memory or failed. Run the study again.",
                 place, status);
  if (word(line, "sharing").empty())
    problems.add("{}: has no sharing. Run the study again.", place);
  if (status == kOk && !number(line, "step_seconds"))
    problems.add("{}: is ok and has no step_seconds. Run the study again.", place);
}

// A repetition that was run once more counts with its last line only.
using Repetition = std::tuple<Setting, std::optional<double>, std::string, std::optional<double>>;

void add_line(const Json& line, StudyPoint& point) {
  const std::string status = word(line, "status");
  if (status == kOk) {
    put_figures(line, "", point.done.emplace_back());
    return;
  }
  ++(status == kFailed ? point.failed : point.out_of_memory);
  add_once(point.errors, word(line, "error"));
}

std::vector<double> values_of(const StudyPoint& point, const std::string& name) {
  std::vector<double> values;
  for (const auto& figures : point.done)
    if (const auto found = figures.find(name); found != figures.end())
      values.push_back(found->second);
  return values;
}

}  // namespace

std::optional<double> StudyPoint::figure(const std::string& name) const {
  return median(values_of(*this, name));
}

std::optional<double> StudyPoint::least(const std::string& name) const {
  const auto values = values_of(*this, name);
  if (values.empty()) return std::nullopt;
  return *std::min_element(values.begin(), values.end());
}

std::optional<double> StudyPoint::most(const std::string& name) const {
  const auto values = values_of(*this, name);
  if (values.empty()) return std::nullopt;
  return *std::max_element(values.begin(), values.end());
}

std::optional<double> StudyPoint::ratio() const {
  const auto recorded = figure("response_length_mean");
  const auto mean = recorded ? recorded : setting.workload.response_length;
  if (!mean || *mean <= 0 || !setting.workload.prefix_length) return std::nullopt;
  return *setting.workload.prefix_length / *mean;
}

std::string StudyPoint::status() const {
  std::string text;
  const auto add = [&](std::int64_t count, const char* what) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += count == repetitions() ? what : fmt::format("{} of {} {}", count, repetitions(), what);
  };
  add(static_cast<std::int64_t>(done.size()), "ok");
  add(out_of_memory, "out of memory");
  add(failed, "failed");
  return text;
}

const StudyPoint* Study::find(const Setting& setting, std::optional<double> group_size,
                              const std::string& sharing) const {
  for (const StudyPoint& point : points)
    if (point.setting == setting && point.group_size == group_size && point.sharing == sharing)
      return &point;
  return nullptr;
}

const StudyPoint* Study::reference_of(const StudyPoint& point) const {
  const auto order = [](const StudyPoint& p) {
    return std::tuple(p.sharing != "REPEATED", p.setting.grid.ranks());
  };
  const StudyPoint* best = nullptr;
  for (const StudyPoint& other : points) {
    if (other.done.empty() || other.setting.workload != point.setting.workload ||
        other.group_size != point.group_size)
      continue;
    if (best == nullptr || order(other) < order(*best)) best = &other;
  }
  return best;
}

Study read_study(const fs::path& out_dir) {
  Study study;
  Problems problems;
  std::map<Repetition, Json> lines;
  std::int64_t unnumbered = 0;
  study.torn = read_lines(
      out_dir / "points.jsonl", problems, [&](const Json& line, const std::string& place) {
        check_point(line, place, problems);
        // Without a number each line is a repetition of its own.
        const auto repetition =
            number(line, "repetition").value_or(-static_cast<double>(++unnumbered));
        lines[{setting_of(line), number(line, "group_size"), word(line, "sharing"), repetition}] =
            line;
        add_once(study.machines, word(line, "machine"));
        add_once(study.versions, word(line, "version"));
        add_once(study.commands, word(line, "command"));
      });
  if (lines.empty() && problems.empty())
    problems.add("{}: has no points (nothing to report). Run the study first.",
                 (out_dir / "points.jsonl").string());
  problems.throw_if_any<DataError>();
  for (const auto& [key, line] : lines) {
    const auto& [setting, group_size, sharing, repetition] = key;
    if (study.points.empty() || study.points.back().setting != setting ||
        study.points.back().group_size != group_size || study.points.back().sharing != sharing)
      study.points.push_back({setting, group_size, sharing, {}, 0, 0, {}});
    add_line(line, study.points.back());
  }
  std::error_code error;
  const fs::path searches = out_dir / "largest_group.jsonl";
  if (fs::exists(searches, error))
    read_lines(searches, problems, [&](const Json& line, const std::string&) {
      study.searches.push_back(
          {setting_of(line), word(line, "sharing"), number(line, "memory_budget_bytes"),
           number(line, "largest_group_size"), number(line, "predicted_memory_bytes"),
           line.value("bounded", Json()) == true, word(line, "error")});
    });
  problems.throw_if_any<DataError>();
  return study;
}

}  // namespace coppice
