// A study's report against figures worked out by hand from a few points. What the page looks like
// to other readers of HTML: tools/check_reports.py.
#include "launch/study_report.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "core/error.hpp"
#include "launch/statistics.hpp"
#include "launch/study_scaling.hpp"
#include "launch/study_tables.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr const char* kWork =
    R"("prefix_length":128,"response_length":32,"recompute":"NONE","context":1,"data":1,)";

std::string line(const std::string& more) { return std::string("{") + kWork + more + "}\n"; }

std::string ok(int group_size, const std::string& sharing, int tensor, int repetition,
               double seconds, double flops, const std::string& more = "") {
  return line("\"group_size\":" + std::to_string(group_size) + ",\"sharing\":\"" + sharing +
              "\",\"tensor\":" + std::to_string(tensor) +
              ",\"repetition\":" + std::to_string(repetition) +
              ",\"status\":\"ok\",\"step_seconds\":" + std::to_string(seconds) +
              ",\"executed_flops\":" + std::to_string(flops) + more);
}

class StudyReport : public testing::Test {
 protected:
  Study study_of(const std::string& lines) const {
    write_file(dir_ / "points.jsonl", lines);
    return read_study(dir_.path());
  }
  std::vector<std::string> problems_of(const std::string& lines) const {
    try {
      study_of(lines);
    } catch (const DataError& error) {
      return error.problems();
    }
    return {};
  }
  // The cells of a row under some of the table's heads.
  static std::vector<std::string> cells(const ReportTable& table, std::size_t row,
                                        const std::vector<std::string>& heads) {
    std::vector<std::string> found;
    for (const auto& head : heads)
      for (std::size_t i = 0; i < table.head.size(); ++i)
        if (table.head[i] == head) found.push_back(table.rows.at(row).at(i));
    return found;
  }

  TemporaryDirectory dir_;
};

// Grouped 1, 2, 9 s: median 2. Repeated 5 and 7 s: median 6. Three times as fast; the FLOP ratio is
// 8e9 / 2e9 = 4, so 3/4 of it is reached. Ratio 128 / 32.
//
// Seen red: means in place of medians; grouped over repeated.
TEST_F(StudyReport, SpeedUpIsOfMediansAndStandsBesideTheFlopRatio) {
  const auto study = study_of(
      ok(4, "GROUPED", 1, 0, 9, 2e9) + ok(4, "REPEATED", 1, 0, 5, 8e9) +
      ok(4, "GROUPED", 1, 1, 1, 2e9, ",\"predicted_speedup\":3.5,\"predicted_step_seconds\":2.2") +
      ok(4, "REPEATED", 1, 1, 7, 8e9) + ok(4, "GROUPED", 1, 2, 2, 2e9));
  const auto table = speedup_table(study, StudyNames(study));
  ASSERT_THAT(table.rows, SizeIs(1));
  EXPECT_THAT(cells(table, 0,
                    {"ratio", "group size", "grouped (s)", "repeated (s)", "speed-up", "FLOP ratio",
                     "speed-up / FLOP ratio", "planned speed-up", "grouped predicted / measured"}),
              ElementsAre("4.00", "4", "2.000", "6.000", "3.00", "4.00", "0.750", "3.50", "1.10"));
}

// Of 2 GiB and 1 GiB planned 1.5 GiB: 1.5; 3 GiB repeated over 1 GiB.
TEST_F(StudyReport, MemoryIsMeasuredAndPlanned) {
  const auto study =
      study_of(ok(4, "GROUPED", 1, 0, 1, 1,
                  ",\"peak_memory_bytes\":1073741824,\"predicted_memory_bytes\":1610612736") +
               ok(4, "REPEATED", 1, 0, 1, 1, ",\"peak_memory_bytes\":3221225472"));
  const auto table = memory_table(study, StudyNames(study));
  EXPECT_THAT(cells(table, 0,
                    {"grouped measured", "grouped planned", "repeated measured", "repeated planned",
                     "repeated / grouped"}),
              ElementsAre("1.000 GiB", "1.500 GiB", "3.000 GiB", kAbsent, "3.00"));
  EXPECT_EQ(table.rows[0][6], "1.500");  // planned / measured
}

// Seen red: points that are not done left out of the tables.
TEST_F(StudyReport, ShowsWhatIsNotDoneWhereItsFiguresWouldStand) {
  const auto study =
      study_of(ok(8, "GROUPED", 1, 0, 2, 2e9) +
               line(R"("group_size":8,"sharing":"REPEATED","tensor":1,"repetition":0,)"
                    R"("status":"out_of_memory","error":"61 GB <needed>")") +
               ok(16, "GROUPED", 1, 0, 3, 3e9) +
               line(R"("group_size":16,"sharing":"GROUPED","tensor":1,"repetition":1,)"
                    R"("status":"failed","error":"signal 9")"));
  const StudyNames names(study);
  EXPECT_THAT(cells(speedup_table(study, names), 0, {"grouped (s)", "repeated (s)", "speed-up"}),
              ElementsAre("2.000", "out of memory", kAbsent));
  EXPECT_THAT(cells(speedup_table(study, names), 1, {"grouped (s)", "repeated (s)"}),
              ElementsAre("3.000", "not run"));
  const auto points = point_table(study, names);
  ASSERT_THAT(points.rows, SizeIs(3));
  EXPECT_THAT(cells(points, 1, {"status", "what went wrong"}),
              ElementsAre("out of memory", "61 GB <needed>"));
  EXPECT_THAT(cells(points, 2, {"status", "repetitions done", "what went wrong"}),
              ElementsAre("1 of 2 ok, 1 of 2 failed", "1", "signal 9"));
  EXPECT_THAT(cells(equality_table(study, names), 1, {"loss", "log-probs"}),
              ElementsAre("out of memory", "out of memory"));
  EXPECT_THAT(cells(phase_table(study, names), 1, {"step (s)"}), ElementsAre("out of memory"));
}

// Loss 2 against 1.998: 0.002 / 2. A loss near 0: 2e-6 / 3e-6; where the mean size of
// the advantages is told, 2e-6 / 0.5.
TEST_F(StudyReport, EveryPointIsComparedWithTheRepeatedOneOnTheFewestRanks) {
  const auto study =
      study_of(ok(4, "GROUPED", 1, 0, 1, 1,
                  ",\"loss\":1.998,\"grad_norm\":4,\"logprob_difference\":2.5e-6") +
               ok(4, "GROUPED", 2, 0, 1, 1, ",\"loss\":2,\"grad_norm\":5") +
               ok(4, "REPEATED", 1, 0, 1, 1, ",\"loss\":2,\"grad_norm\":4") +
               ok(4, "REPEATED", 2, 0, 1, 1, ",\"loss\":2") +
               ok(8, "GROUPED", 1, 0, 1, 1, ",\"loss\":3e-6") +
               ok(8, "REPEATED", 1, 0, 1, 1, ",\"loss\":1e-6") +
               ok(16, "GROUPED", 1, 0, 1, 1, ",\"loss\":3e-6,\"advantage_abs_mean\":0.5") +
               ok(16, "REPEATED", 1, 0, 1, 1, ",\"loss\":1e-6,\"advantage_abs_mean\":0.5"));
  const auto table = equality_table(study, StudyNames(study));
  ASSERT_THAT(table.rows, SizeIs(8));
  const std::vector<std::string> heads = {"grid", "compared with", "loss", "gradient norm",
                                          "log-probs"};
  EXPECT_THAT(cells(table, 0, heads),
              ElementsAre("1 x 1 x 1", "REPEATED, grid 1 x 1 x 1", "0.0010", "0", "2.5e-06"));
  EXPECT_THAT(cells(table, 1, heads),
              ElementsAre("1 x 1 x 1", "others are, with this", kAbsent, kAbsent, kAbsent));
  EXPECT_THAT(cells(table, 2, {"loss"}), ElementsAre("0.67"));
  EXPECT_THAT(cells(table, 4, {"loss"}), ElementsAre("4.0e-06"));
  EXPECT_THAT(cells(table, 6, heads),
              ElementsAre("2 x 1 x 1", "REPEATED, grid 1 x 1 x 1", "0", "0.20", kAbsent));
  EXPECT_THAT(cells(table, 7, heads),
              ElementsAre("2 x 1 x 1", "REPEATED, grid 1 x 1 x 1", "0", kAbsent, kAbsent));
}

// Strong, group size 4: 8e9 FLOP in 8 s and in 5 s on two ranks: 1.6 times, 80 %.
// Weak, 4 on one rank and 8 on two: 8e9 in 8 s, 14e9 in 10 s: 1.4 times, 70 %.
// Communication: 0.5 s by axes of 5 s; 1 s of reduce of 10 s.
//
// Seen red: seconds in place of rates in weak scaling.
TEST_F(StudyReport, ScalingIsOfRates) {
  const auto study = study_of(
      ok(4, "GROUPED", 1, 0, 8, 8e9) +
      ok(4, "GROUPED", 2, 0, 5, 8e9,
         R"(,"seconds":{"reduce":0.1},"communication_bytes":2048,)"
         R"("communication":{"tensor":{"seconds":0.3,"bytes":2000},"world":{"seconds":0.2}})") +
      ok(8, "GROUPED", 2, 0, 10, 14e9, R"(,"seconds":{"reduce":1})"));
  const StudyNames names(study);
  const auto strong = scaling_table(strong_scaling(study, names), names);
  ASSERT_THAT(strong.rows, SizeIs(2));
  const std::vector<std::string> heads = {"ranks",      "speed-up",          "efficiency",
                                          "bytes sent", "communication (s)", "communication share"};
  EXPECT_THAT(cells(strong, 0, heads),
              ElementsAre("1", "1.00", "100.0 %", kAbsent, kAbsent, kAbsent));
  EXPECT_THAT(cells(strong, 1, heads),
              ElementsAre("2", "1.60", "80.0 %", "2.000 KiB", "0.500", "10.0 %"));
  const auto weak = scaling_table(weak_scaling(study, names), names);
  ASSERT_THAT(weak.rows, SizeIs(2));
  EXPECT_THAT(cells(weak, 1, heads), ElementsAre("2", "1.40", "70.0 %", kAbsent, "1.00", "10.0 %"));
}

TEST_F(StudyReport, ARepetitionThatWasDoneAgainCountsOnce) {
  const auto study = study_of(
      line(R"("group_size":4,"sharing":"GROUPED","tensor":1,"repetition":0,"status":"failed")") +
      ok(4, "GROUPED", 1, 0, 2, 1));
  ASSERT_THAT(study.points, SizeIs(1));
  EXPECT_EQ(study.points[0].status(), "ok");
  EXPECT_EQ(study.points[0].repetitions(), 1);
}

TEST_F(StudyReport, LeavesOutATornLastLineAndRefusesOthersTogether) {
  EXPECT_TRUE(study_of(ok(4, "GROUPED", 1, 0, 2, 1) + "{\"prefix").torn);
  EXPECT_FALSE(study_of(ok(4, "GROUPED", 1, 0, 2, 1)).torn);
  EXPECT_THAT(problems_of("{\"prefix\n" + ok(4, "GROUPED", 1, 0, 2, 1) + "{\"status\":\"ok\"}\n"),
              ElementsAre(HasSubstr("points.jsonl:1:"), HasSubstr("points.jsonl:3: has no sharing"),
                          HasSubstr("points.jsonl:3: is ok and has no step_seconds")));
  EXPECT_THAT(problems_of(""), ElementsAre(HasSubstr("has no points")));
}

TEST_F(StudyReport, TellsWhereItWasMeasuredAndTheLargestGroups) {
  write_file(dir_ / "points.jsonl",
             ok(4, "GROUPED", 1, 0, 2, 1,
                R"(,"machine":"two cores","version":"0.1.0","command":"coppice study")"));
  write_file(dir_ / "largest_group.jsonl",
             line(R"("sharing":"GROUPED","memory_budget_bytes":4294967296,)"
                  R"("largest_group_size":61,"predicted_memory_bytes":4288675840)") +
                 line(R"("sharing":"REPEATED","memory_budget_bytes":4294967296,)"
                      R"("largest_group_size":0)") +
                 line(R"("sharing":"GROUPED","largest_group_size":4096,"bounded":true)") +
                 line(R"("sharing":"GROUPED","error":"160 tokens are too many")"));
  write_study_report(dir_.path());
  for (const char* name : {"report.html", "report.md"}) {
    const std::string text = read_file(dir_ / name);
    for (const char* words :
         {"Machine: two cores.", "Program version: 0.1.0.", "Command: coppice study.",
          "prefix length / mean response length", "61", "4.000 GiB", "3.994 GiB", "none fits",
          "at least 4096", "160 tokens are too many"})
      EXPECT_THAT(text, HasSubstr(words)) << name;
  }
}

// What a line holds is text on the page, never markup or a command of gnuplot's.
TEST_F(StudyReport, NamesStayText) {
  write_file(dir_ / "points.jsonl",
             R"({"model":"a\"b\\ <script> `date` $x ' |","sharing":"GROUPED","status":"ok",)"
             R"("step_seconds":1,"peak_memory_bytes":5,"group_size":2})"
             "\n"
             R"({"model":"plain","sharing":"GROUPED","status":"ok","step_seconds":1,)"
             R"("peak_memory_bytes":5,"group_size":2})"
             "\n");
  write_study_report(dir_.path());
  const std::string page = read_file(dir_ / "report.html");
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("a&quot;b\\ &lt;script&gt; `date` $x &#39; |"));
  EXPECT_THAT(read_file(dir_ / "report.md"), HasSubstr("\\`date\\` $x ' \\|"));
}

// Seen red: report.md written before the page was drawn.
TEST_F(StudyReport, WithoutGnuplotNothingIsWritten) {
  write_file(dir_ / "points.jsonl", ok(4, "GROUPED", 1, 0, 2, 1, ",\"peak_memory_bytes\":5"));
  write_file(dir_ / "report.html", "old");
  const std::string path = std::getenv("PATH");
  setenv("PATH", dir_.path().c_str(), 1);
  try {
    write_study_report(dir_.path());
    ADD_FAILURE() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gnuplot cannot be started"));
    EXPECT_THAT(error.what(), HasSubstr("gnuplot-nox"));
  }
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(read_file(dir_ / "report.html"), "old");
  EXPECT_THAT(dir_.names(), ElementsAre("points.jsonl", "report.html"));
}

TEST(ReportTable, FiguresHaveThreeDigitsAndNoNeedlessExponent) {
  EXPECT_EQ(figure_text(1234567.0), "1234567");
  EXPECT_EQ(figure_text(0.0), "0.00");
  EXPECT_EQ(figure_text(0.5), "0.500");
  EXPECT_EQ(figure_text(0.9996), "1.00");
  EXPECT_EQ(figure_text(99.96), "100");
  EXPECT_EQ(figure_text(0.01234), "0.0123");
  EXPECT_EQ(figure_text(1e-9), "1.00e-09");
  EXPECT_EQ(figure_text(-12.345), "-12.3");
  EXPECT_EQ(figure_text(std::nullopt), kAbsent);
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.500 KiB");
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), std::nullopt);
}

}  // namespace
}  // namespace coppice::test
