#include "model/config_fields.hpp"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace coppice {
namespace {

// Beyond it no size is a real one, and products of sizes could leave 64 bits.

// A value as the user wrote it, shortened where it is a whole object.
std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

constexpr int kDeepest = 32;
struct TooDeep {};

}  // namespace

nlohmann::json config_object(std::string_view text, const std::string& file, Problems& problems) {
  using Json = nlohmann::json;
  const auto unreadable = [&](const std::string& what) {
    problems.add("{}: {}. Take config.json from the model's own directory.", file, what);
    problems.throw_if_any<ConfigError>();
  };
  Json object;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::set<std::string> repeated;
  try {
    // No config nests deeply; a file that does could otherwise end the stack.
    object = Json::parse(text, [&](int depth, Json::parse_event_t event, const Json& value) {
      if (depth > kDeepest) throw TooDeep{};
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
        repeated.insert(value.get<std::string>());
      return true;
    });
  } catch (const TooDeep&) {
    unreadable(fmt::format("lists and objects are nested more than {} deep (no model's config is)",
                           kDeepest));
  } catch (const Json::parse_error& error) {
    unreadable(fmt::format("bad JSON at byte {} (it cannot be read any further)", error.byte));
  } catch (const Json::out_of_range&) {
    unreadable("holds a number that is infinite in double precision (no model's config does)");
  }
  for (const auto& key : repeated)
    problems.add("{}: {} is given twice in one object (it is unclear which counts). Remove one.",
                 file, Json(key).dump());
  if (!object.is_object()) unreadable("not a JSON object (a model's config is one)");
  return object;
}

const nlohmann::json* ConfigFields::find(std::string_view name) const {
  const auto field = object_.find(name);
  return field == object_.end() || field->is_null() ? nullptr : &*field;
}

bool ConfigFields::is_null(std::string_view name) const {
  const auto field = object_.find(name);
  return field != object_.end() && field->is_null();
}

std::string ConfigFields::place(std::string_view name) const {
  return fmt::format("{}: {}{}", file_, prefix_, name);
}

void ConfigFields::refuse(std::string_view name, std::string_view why,
                          std::string_view what_to_do) const {
  const auto field = object_.find(name);
  problems_.add("{} {} ({}). {}", place(name),
                field == object_.end() ? "is missing" : "= " + shown(*field), why, what_to_do);
}

std::int64_t ConfigFields::size(std::string_view name, std::optional<std::int64_t> fallback,
                                std::int64_t largest) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr && fallback && !is_null(name)) return *fallback;
  if (value != nullptr && value->is_number_integer()) {
    const bool fits = value->is_number_unsigned()
                          ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(largest)
                          : value->get<std::int64_t>() > 0;
    if (fits && value->get<std::int64_t>() > 0) return value->get<std::int64_t>();
  }
  refuse(name, fmt::format("it must be a whole number from 1 to {}", largest),
         "Take config.json from the model's own directory.");
  return fallback.value_or(1);
}

double ConfigFields::number(std::string_view name, std::optional<double> fallback) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr && fallback && !is_null(name)) return *fallback;
  if (value != nullptr && value->is_number() && std::isfinite(value->get<double>())) {
    return value->get<double>();
  }
  refuse(name, "it must be a number", "Take config.json from the model's own directory.");
  return fallback.value_or(1.0);
}

double ConfigFields::positive(std::string_view name, std::optional<double> fallback) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr && fallback && !is_null(name)) return *fallback;
  if (value != nullptr && value->is_number() && std::isfinite(value->get<double>()) &&
      value->get<double>() > 0) {
    return value->get<double>();
  }
  refuse(name, "it must be a number above 0", "Take config.json from the model's own directory.");
  return fallback.value_or(1.0);
}

bool ConfigFields::boolean(std::string_view name, bool fallback) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr && !is_null(name)) return fallback;
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  refuse(name, "it must be true or false", "Take config.json from the model's own directory.");
  return fallback;
}

std::string ConfigFields::string(std::string_view name, std::string fallback) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr && !is_null(name)) return fallback;
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  refuse(name, "it must be a string", "Take config.json from the model's own directory.");
  return fallback;
}

}  // namespace coppice
