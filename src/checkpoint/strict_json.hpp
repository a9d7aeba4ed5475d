#pragma once
// JSON as files from elsewhere must have it: one value, no key twice in an object. What the keys
// mean is left to the callers.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace coppice {

/// The parsed text; nothing, and a line in `problems` that begins with `place`, where it is not
/// JSON or repeats a key. Keys keep their order.
std::optional<nlohmann::ordered_json> parse_strict_json(std::string_view text,
                                                        std::string_view place, Problems& problems);

}  // namespace coppice
