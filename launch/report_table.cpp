#include "launch/report_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "launch/one_line.hpp"

namespace coppice {

std::string figure_text(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return kAbsent;
  const double size = std::abs(*value);
  // 0.9996 to three digits is 1.00, which has one before the point: rounding comes first.
  const std::string rounded = fmt::format("{:.{}e}", *value, digits - 1);
  if (size != 0 && (size < 1e-4 || size >= 1e7)) return rounded;
  const int before = 1 + std::stoi(rounded.substr(rounded.find('e') + 1));
  return fmt::format("{:.{}f}", *value, std::max(0, digits - before));
}

std::string count_text(std::optional<double> count) {
  // Means of lengths are not whole.
  return count ? fmt::format("{}", *count) : kAbsent;
}

std::string bytes_text(std::optional<double> bytes) {
  if (!bytes || !std::isfinite(*bytes)) return kAbsent;
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = *bytes;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", unit == 0 ? fmt::format("{:.0f}", value) : figure_text(value, 4),
                     kUnits[unit]);
}

std::string percent_text(std::optional<double> share) {
  if (!share || !std::isfinite(*share)) return kAbsent;
  return fmt::format("{:.1f} %", 100 * *share);
}

std::string markdown_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : one_line(text)) {
    if (std::string_view("\\`*_[]<>|#&").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string to_markdown(const ReportTable& table) {
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (const auto& cell : cells) text += "| " + markdown_escaped(cell) + " ";
    text += "|\n";
  };
  line(table.head);
  for (std::size_t i = 0; i < table.head.size(); ++i) text += "|---";
  text += "|\n";
  for (const auto& row : table.rows) line(row);
  return text;
}

}  // namespace coppice
