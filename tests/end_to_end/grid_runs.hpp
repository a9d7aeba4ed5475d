#pragma once
// The table of runs on grids (grid_runs.txt), and for each of its rows the model, the rollouts and
// the run config that its words stand for. What is expected of a run is grid_test.cpp's business.
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace coppice::test {

struct GridRunRow {
  std::map<std::string, std::string> words;  ///< by column

  const std::string& operator[](const std::string& column) const { return words.at(column); }
  int number(const std::string& column) const { return std::stoi(words.at(column)); }
  int ranks() const { return number("tensor") * number("context") * number("data"); }
  /// The row in letters, digits and underlines.
  std::string name() const;
};
void PrintTo(const GridRunRow& row, std::ostream* out);

std::vector<GridRunRow> grid_run_rows();

/// A Hugging Face config.json: heads and widths that the row's tensor ranks just divide.
std::string model_config_of(const GridRunRow& row);
/// Six groups with what the row's loss reads of them.
std::string rollouts_of(const GridRunRow& row);
/// All of a run but its grid, which is `grid_settings`: what one rank runs too.
std::string run_config_of(const GridRunRow& row);
/// FIELD=VALUE words.
std::vector<std::string> grid_settings(const GridRunRow& row);

}  // namespace coppice::test
