#pragma once
// What a rollouts file holds, as one JSON object, for `coppice inspect`.
#include <filesystem>
#include <nlohmann/json.hpp>

namespace coppice {

/// Errors    DataError with every problem of the file
nlohmann::ordered_json describe_rollouts(const std::filesystem::path& path);

}  // namespace coppice
