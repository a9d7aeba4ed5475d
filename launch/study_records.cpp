#include "launch/study_records.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "launch/one_line.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json keys_of(const SweepPoint& point, const std::vector<std::string>& models,
             WithGroupSize with_group_size = WithGroupSize::kYes) {
  Json json = Json::object();
  if (!models.empty()) json["model"] = models.at(point.model);
  if (point.prefix_length > 0) {
    json["prefix_length"] = point.prefix_length;
    json["response_length"] = point.response_length;
    if (with_group_size == WithGroupSize::kYes) json["group_size"] = point.group_size;
  }
  json["sharing"] = point.sharing;
  json["recompute"] = point.recompute;
  json["tensor"] = point.grid.tensor;
  json["context"] = point.grid.context;
  json["data"] = point.grid.data;
  return json;
}

// Counts without a decimal point.
Json number(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (value == std::floor(value) && std::abs(value) < kExact)
    return static_cast<std::int64_t>(value);
  return value;
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string line_of(const StudyRecord& record, const SweepPoint& point,
                    const std::vector<std::string>& models, const StudyOrigin& origin) {
  Json json = keys_of(point, models);
  json["repetition"] = record.run.repetition;
  json["status"] = record.status;
  if (!record.error.empty()) json["error"] = record.error;
  for (const auto& [name, value] : record.figures) {
    const auto dot = name.find('.');
    if (dot == name.npos)
      json[name] = number(value);
    else
      json[name.substr(0, dot)][name.substr(dot + 1)] = number(value);
  }
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string&>{"machine", origin.machine},
        {"version", origin.version},
        {"command", origin.command}})
    if (!text.empty()) json[name] = text;
  return text_of(json) + "\n";
}

// Which point has these keys, as keys_of() prints them.
std::map<std::string, std::size_t> places_of(const std::vector<SweepPoint>& points,
                                             const std::vector<std::string>& models) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < points.size(); ++i) places[text_of(keys_of(points[i], models))] = i;
  return places;
}

// Nothing where the line is no record of a point. `names` are the keys of every point.
std::optional<StudyRecord> record_of(const Json& json, const Json& names,
                                     const std::map<std::string, std::size_t>& places) {
  if (!json.is_object()) return std::nullopt;
  Json keys = Json::object();
  for (const auto& [name, unused] : names.items())
    if (json.contains(name)) keys[name] = json[name];
  const auto place = places.find(text_of(keys));
  if (place == places.end()) return std::nullopt;
  StudyRecord record;
  record.run.point = place->second;
  const auto text = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                       : std::string();
  };
  record.status = text("status");
  record.error = text("error");
  const bool has_status = record.ok() || record.status == study_status::kOutOfMemory ||
                          record.status == study_status::kFailed;
  if (!has_status || !json.contains("repetition") || !json["repetition"].is_number_integer())
    return std::nullopt;
  record.run.repetition = json["repetition"].get<std::int64_t>();
  for (const auto& [name, value] : json.items()) {
    if (names.contains(name) || name == "repetition") continue;
    if (value.is_number()) record.figures.emplace_back(name, value.get<double>());
    if (!value.is_object()) continue;
    for (const auto& [inner, part] : value.items())
      if (part.is_number()) record.figures.emplace_back(name + "." + inner, part.get<double>());
  }
  return record;
}

}  // namespace

std::optional<double> StudyRecord::figure(std::string_view name) const {
  for (const auto& [known, value] : figures)
    if (known == name) return value;
  return std::nullopt;
}

std::string json_keys_of(const SweepPoint& point, const std::vector<std::string>& models,
                         WithGroupSize with_group_size) {
  const std::string text = text_of(keys_of(point, models, with_group_size));
  return text.substr(1, text.size() - 2);
}

StudyRecords::StudyRecords(fs::path path, const std::vector<SweepPoint>& points,
                           std::vector<std::string> models, StudyOrigin origin)
    : path_(std::move(path)),
      points_(points),
      models_(std::move(models)),
      origin_(std::move(origin)) {
  std::string text;
  {
    std::ifstream file(path_, std::ios::binary);
    if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::size_t whole = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
  const auto places = places_of(points_, models_);
  const Json names = points_.empty() ? Json::object() : keys_of(points_[0], models_);
  Problems problems;
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < whole; ++number) {
    const std::size_t end = text.find('\n', begin);
    const Json json = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), nullptr,
                                  /*allow_exceptions=*/false);
    if (auto record = record_of(json, names, places))
      keep(std::move(*record));
    else
      problems.add(
          "{}:{}: is no record of a run of this study (nothing is dropped silently). Remove the "
          "line, and its run is done again.",
          path_.string(), number);
    begin = end + 1;
  }
  problems.throw_if_any<DataError>();
  file_ = open(path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0 || (whole < text.size() && ftruncate(file_, static_cast<off_t>(whole)) != 0)) {
    const int error = errno;
    if (file_ >= 0) close(file_);
    throw IoError(fmt::format("{} cannot be written: {}.", path_.string(), std::strerror(error)));
  }
}

StudyRecords::~StudyRecords() { close(file_); }

bool StudyRecords::has(const StudyRun& run) const {
  return done_.contains({run.point, run.repetition});
}

bool StudyRecords::has_failed(std::size_t point) const { return failed_.contains(point); }

void StudyRecords::keep(StudyRecord record) {
  done_.insert({record.run.point, record.run.repetition});
  if (!record.ok()) failed_.insert(record.run.point);
  records_.push_back(std::move(record));
}

void StudyRecords::append(StudyRecord record) {
  const std::string line = line_of(record, points_.at(record.run.point), models_, origin_);
  const ssize_t written = write(file_, line.data(), line.size());
  if (written != std::ssize(line) || fdatasync(file_) != 0)
    throw IoError(
        fmt::format("{} cannot be written: {}. Free space on its disk; the same command "
                    "goes on.",
                    path_.string(), written < 0 ? std::strerror(errno) : "no space"));
  keep(std::move(record));
}

}  // namespace coppice
