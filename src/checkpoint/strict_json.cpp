#include "checkpoint/strict_json.hpp"

#include <set>
#include <vector>

namespace coppice {

std::optional<nlohmann::ordered_json> parse_strict_json(std::string_view text,
                                                        std::string_view place,
                                                        Problems& problems) {
  using Json = nlohmann::ordered_json;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::set<std::string> repeated;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      auto key = value.get<std::string>();
      if (!keys.back().insert(key).second) repeated.insert(std::move(key));
    }
    return true;
  };
  std::optional<Json> parsed;
  try {
    parsed = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, ...": the bracket is for
    // programmers.
    const std::string_view what = error.what();
    const auto bracket = what.find("] ");
    problems.add("{}: bad JSON: {}.", place,
                 bracket == what.npos ? what : what.substr(bracket + 2));
    return std::nullopt;
  }
  for (const auto& key : repeated) {
    problems.add("{}: the key \"{}\" is given twice in one object (it is unclear which counts).",
                 place, key);
  }
  if (!repeated.empty()) return std::nullopt;
  return parsed;
}

}  // namespace coppice
