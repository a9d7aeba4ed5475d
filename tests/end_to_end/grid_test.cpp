// The program on grids of ranks against the program on one rank: figures of every step, weights and
// moments after three steps, the checkpoint taken up by one rank, and what `coppice plan` foretold.
// Which runs: grid_runs.txt. Every grid inside the library: tests/ranks/gradient_grid_test.cpp.
#include <gmock/gmock.h>

#include <array>

#include "end_to_end/grid_job.hpp"

namespace coppice::test {
namespace {

using nlohmann::json;

// A grid that some column's words ask for: at most eight ranks, sequence parallel with a meaning.
bool is_grid(const GridRunRow& row) {
  return row.ranks() <= 8 && !(row["sequence"] == "on" && row["tensor"] == "1");
}

using Pair = std::array<std::string, 4>;  // column, word, column, word

std::set<Pair> pairs_of(const GridRunRow& row) {
  std::set<Pair> pairs;
  for (const auto& [a, x] : row.words)
    for (const auto& [b, y] : row.words)
      if (a < b) pairs.insert({a, x, b, y});
  return pairs;
}

// Words of every grid, and of the other columns each pair: what a table of pairs has to show.
std::set<Pair> wanted_pairs(const std::vector<GridRunRow>& rows) {
  std::map<std::string, std::set<std::string>> words;
  for (const auto& row : rows)
    for (const auto& [column, word] : row.words) words[column].insert(word);
  std::set<Pair> wanted;
  for (const auto& t : words["tensor"])
    for (const auto& c : words["context"])
      for (const auto& d : words["data"])
        for (const auto& s : words["sequence"]) {
          const GridRunRow grid{{{"tensor", t}, {"context", c}, {"data", d}, {"sequence", s}}};
          if (!is_grid(grid)) continue;
          for (const auto& [a, others] : words)
            for (const auto& [b, more] : words)
              for (const auto& x : others)
                for (const auto& y : more) {
                  const auto fits = [&](const std::string& column, const std::string& word) {
                    return !grid.words.contains(column) || grid[column] == word;
                  };
                  if (a < b && fits(a, x) && fits(b, y)) wanted.insert({a, x, b, y});
                }
        }
  return wanted;
}

// Five is a number of ranks, not a size of the pairwise part.
TEST(ProgramGrid, TheTableHasEveryPairOfValuesInFewRows) {
  std::vector<GridRunRow> rows = grid_run_rows();
  EXPECT_LE(rows.size(), 40);
  std::set<int> ranks;
  for (const auto& row : rows) ranks.insert(row.ranks());
  EXPECT_THAT(ranks, testing::IsSupersetOf({1, 2, 3, 5, 6, 8}));
  std::erase_if(rows, [](const auto& row) { return row.ranks() == 5; });
  std::set<Pair> wanted = wanted_pairs(rows);
  EXPECT_GT(wanted.size(), 600);
  for (const auto& row : rows)
    for (const auto& pair : pairs_of(row)) wanted.erase(pair);
  EXPECT_THAT(wanted, testing::IsEmpty());
}

// The figures of a step that are the same in a plan as in the metrics.
void expect_as_planned(const json& planned, const json& step) {
  for (const auto& [key, value] : planned.items()) {
    if (key == "fallbacks" || key == "imbalance" || key == "ranks" || key == "communication")
      continue;
    EXPECT_EQ(step.value(key, json(0)), value) << key << " of step " << step["step"];
  }
  std::map<std::string, std::int64_t> bytes, sent;
  for (const auto& [axis, collectives] : planned["communication"].items())
    for (const auto& [name, traffic] : collectives.items())
      bytes[axis] += traffic["bytes"].get<std::int64_t>();
  if (step.contains("communication"))
    for (const auto& [axis, traffic] : step["communication"].items())
      if (const auto count = traffic["bytes"].get<std::int64_t>()) sent[axis] = count;
  EXPECT_EQ(bytes, sent);
}

// Seen red: one tensor rank taken for the only holder of its key-value head; each rank dividing by
// its own count of tokens; `parallel.sequence_parallel: false` not heeded.
class ProgramGrid : public testing::TestWithParam<GridRunRow> {};

TEST_P(ProgramGrid, EqualsOneRank) {
  const GridRunRow& row = GetParam();
  const GridJob job(row);
  job.run(job.train("one", 4));
  const auto on_grid = job.train("grid", 3, grid_settings(row));
  job.run(on_grid, row.ranks());

  const auto want = job.metrics("one"), got = job.metrics("grid");
  ASSERT_EQ(got.size(), 3);
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    expect_same_figures(got[i], want[i]);
    const auto rows = got[i]["rows"].get<std::int64_t>();
    const auto aligned = rows + got[i]["alignment_rows"].get<std::int64_t>();
    if (row["sequence"] == "on")
      EXPECT_EQ(aligned % row.number("tensor"), 0);
    else
      EXPECT_EQ(aligned, rows);
  }
  expect_same_state(job.checkpoint("grid", 3), job.checkpoint("one", 3), job.start());

  auto planning = on_grid;
  planning[0] = "plan";
  planning.emplace_back("--json");
  const auto plan = json::parse(job.run(planning));
  ASSERT_EQ(plan["steps"].size(), 3);
  double peak = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_as_planned(plan["steps"][i], got[i]);
    peak = std::max(peak, got[i]["peak_memory_bytes"].get<double>());
  }
  EXPECT_NEAR(plan["peak_memory_bytes"].get<double>(), peak, 0.05 * peak);

  job.run(job.train("grid", 4));  // one rank takes up what the grid has saved
  const auto resumed = job.metrics("grid");
  ASSERT_EQ(resumed.size(), 4);
  expect_same_figures(resumed[3], want[3]);
}

INSTANTIATE_TEST_SUITE_P(Runs, ProgramGrid, testing::ValuesIn(grid_run_rows()),
                         [](const auto& run) { return run.param.name(); });

}  // namespace
}  // namespace coppice::test
