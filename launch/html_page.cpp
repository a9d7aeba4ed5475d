#include "launch/html_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "launch/one_line.hpp"

namespace coppice {
namespace {

// Drawings are made 380 wide, so that their text is as large as the page's on a phone and on a
// screen; a wider column would only blow them up.
constexpr std::string_view kStyle = R"(
body { margin: 0 auto; max-width: 1240px; padding: 0 16px 48px; background: #fff; color: #1b1b1b;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 21px; margin-top: 40px; border-bottom: 1px solid #c8c8c8; }
h3 { font-size: 17px; margin-bottom: 4px; }
p, li { max-width: 76ch; overflow-wrap: anywhere; }
nav ul { padding-left: 20px; }
a { color: #0b4f9e; }
.warning { border-left: 4px solid #b3261e; padding: 4px 12px; background: #fdeeed; }
.wide { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; border-bottom: 1px solid #dcdcdc; text-align: right; }
td { white-space: nowrap; vertical-align: top; }
th { background: #f3f3f1; vertical-align: bottom; font-weight: 600; }
th.words, td.words { text-align: left; }
td.long { white-space: normal; min-width: 30ch; max-width: 60ch; }
.figures { display: grid; gap: 16px; margin: 12px 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 370px), 1fr)); }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 15px; font-weight: 600; }
pre { overflow-x: auto; font-size: 13px; background: #f3f3f1; padding: 8px 12px; }
svg { display: block; width: 100%; max-width: 560px; height: auto; }
summary { cursor: pointer; color: #0b4f9e; }
)";

// Figures stand right, words left; what is longer wraps.
const char* class_of(const std::string& cell) {
  constexpr std::size_t kLong = 28;
  if (cell.size() > kLong) return " class=\"words long\"";
  const bool is_figure =
      cell == kAbsent ||
      (!cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || cell[0] == '-'));
  return is_figure ? "" : " class=\"words\"";
}

// Of a column: as its first cell that is there.
const char* class_of_column(const ReportTable& table, std::size_t column) {
  for (const auto& row : table.rows)
    if (row[column] != kAbsent) return *class_of(row[column]) == '\0' ? "" : " class=\"words\"";
  return "";
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : one_line(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

HtmlPage::HtmlPage(std::string_view title) : title_(html_escaped(title)) {}

void HtmlPage::section(std::string_view id, std::string_view heading) {
  const std::string words = html_escaped(heading);
  contents_ += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", id, words);
  body_ += fmt::format("<h2 id=\"{}\">{}</h2>\n", id, words);
}

void HtmlPage::subsection(std::string_view heading) {
  body_ += fmt::format("<h3>{}</h3>\n", html_escaped(heading));
}

void HtmlPage::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", html_escaped(text));
}

void HtmlPage::warning(std::string_view text) {
  body_ += fmt::format("<p class=\"warning\">{}</p>\n", html_escaped(text));
}

void HtmlPage::table(const ReportTable& table, std::string_view fold) {
  if (!fold.empty()) body_ += fmt::format("<details><summary>{}</summary>\n", html_escaped(fold));
  body_ += "<div class=\"wide\"><table>\n<thead><tr>";
  for (std::size_t i = 0; i < table.head.size(); ++i)
    body_ += fmt::format("<th{}>{}</th>", class_of_column(table, i), html_escaped(table.head[i]));
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    body_ += "<tr>";
    for (const auto& cell : row)
      body_ += fmt::format("<td{}>{}</td>", class_of(cell), html_escaped(cell));
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
  if (!fold.empty()) body_ += "</details>\n";
}

void HtmlPage::lines(std::string_view text, std::string_view fold) {
  body_ += fmt::format("<details><summary>{}</summary>\n<pre>", html_escaped(fold));
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    body_ += html_escaped(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  body_ += "</pre></details>\n";
}

void HtmlPage::figures(const std::vector<std::string>& drawings) {
  if (drawings.empty()) return;
  body_ += "<div class=\"figures\">\n";
  for (const auto& drawing : drawings) body_ += "<figure>" + drawing + "</figure>\n";
  body_ += "</div>\n";
}

std::string HtmlPage::text() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "<nav><ul>\n{2}</ul></nav>\n{3}</body>\n</html>\n",
      title_, kStyle, contents_, body_);
}

}  // namespace coppice
