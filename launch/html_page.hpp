#pragma once
// A page that is one file: styles and drawings inside, nothing fetched, readable on a phone. Knows
// HTML and nothing of what is reported; it is XML too, so that any XML reader can check it.
#include <string>
#include <string_view>
#include <vector>

#include "launch/report_table.hpp"

namespace coppice {

/// `text` with &, <, > and quotes escaped, and control characters as one_line() writes them.
std::string html_escaped(std::string_view text);

class HtmlPage {
 public:
  explicit HtmlPage(std::string_view title);

  /// A heading with an anchor; each also becomes an entry of the contents.
  void section(std::string_view id, std::string_view heading);
  void subsection(std::string_view heading);
  void paragraph(std::string_view text);
  /// A paragraph that a reader must not miss.
  void warning(std::string_view text);
  /// Scrolls by itself where it is wider than the screen. `fold`: shown when asked for.
  void table(const ReportTable& table, std::string_view fold = {});
  /// Lines as they are, shown when asked for.
  void lines(std::string_view text, std::string_view fold);
  /// Drawings side by side where there is room; each as SvgDrawer makes it.
  void figures(const std::vector<std::string>& drawings);

  /// The whole page.
  std::string text() const;

 private:
  std::string title_, contents_, body_;
};

}  // namespace coppice
