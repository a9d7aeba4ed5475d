#pragma once
// A table of a report before it is HTML or Markdown, and how its figures are written. Both reports
// of a study show the same tables, so that they cannot disagree.
#include <optional>
#include <string>
#include <vector>

namespace coppice {

/// Cells are text as a reader sees it; whoever writes a format escapes them.
struct ReportTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  ///< each as long as `head`
};

/// What stands where a figure does not apply or was not recorded.
inline constexpr const char* kAbsent = "–";

/// So many significant digits, without an exponent where that is readable: "0.0123", "4.1e-09".
std::string figure_text(std::optional<double> value, int digits = 3);
/// All digits of a whole number.
std::string count_text(std::optional<double> count);
/// "1.25 GiB" and so on: units of 1024.
std::string bytes_text(std::optional<double> bytes);
/// "12.5 %"
std::string percent_text(std::optional<double> share);

/// GitHub's kind of table.
std::string to_markdown(const ReportTable& table);
/// A text with what Markdown or the HTML within it would take for marks escaped.
std::string markdown_escaped(const std::string& text);

}  // namespace coppice
