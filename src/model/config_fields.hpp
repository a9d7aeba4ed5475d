#pragma once
// Reading typed fields of a config.json, collecting what is wrong with them instead of stopping at
// the first. Which fields exist and what they mean is model_config's and rope_config's matter.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace coppice {

constexpr std::int64_t kLargestSize = std::numeric_limits<std::int32_t>::max();

/// The object that a config.json holds. A key that stands twice in one object is a problem.
///
/// Errors    ConfigError with all problems where the text is no JSON object, or can be no model's
nlohmann::json config_object(std::string_view text, const std::string& file, Problems& problems);

/// One JSON object, the path its fields are named by, and the list its problems go to.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, std::string file_name, std::string prefix,
               Problems& problems)
      : object_(object),
        file_(std::move(file_name)),
        prefix_(std::move(prefix)),
        problems_(problems) {}

  /// The field's value; null and absent are both nullptr.
  const nlohmann::json* find(std::string_view name) const;
  /// True if the field is there and is null.
  bool is_null(std::string_view name) const;

  /// Each gives the fallback where the field is absent, and also, with a problem noted, where its
  /// value is not one. Without a fallback an absent field is a problem.
  std::int64_t size(std::string_view name, std::optional<std::int64_t> fallback = {},
                    std::int64_t largest = kLargestSize) const;
  double number(std::string_view name, std::optional<double> fallback = {}) const;
  double positive(std::string_view name, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view name, bool fallback) const;
  std::string string(std::string_view name, std::string fallback) const;

  /// "file: path.field"
  std::string place(std::string_view name) const;
  /// Notes "place = value (why). what_to_do"
  void refuse(std::string_view name, std::string_view why, std::string_view what_to_do) const;

  const std::string& file() const { return file_; }
  Problems& problems() const { return problems_; }
  const nlohmann::json& object() const { return object_; }

 private:
  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
  Problems& problems_;
};

}  // namespace coppice
