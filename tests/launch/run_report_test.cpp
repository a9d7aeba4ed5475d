// The steps of metrics.jsonl as a run's report reads and draws them. What its page looks like to
// other readers of HTML: tools/check_reports.py.
#include "launch/run_report.hpp"

#include <gmock/gmock.h>

#include "core/error.hpp"
#include "launch/run_metrics.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class RunReport : public testing::Test {
 protected:
  RunMetrics metrics_of(const std::string& lines) const {
    write_file(dir_ / "metrics.jsonl", lines);
    return read_run_metrics(dir_ / "metrics.jsonl");
  }
  std::vector<std::string> problems_of(const std::string& lines) const {
    try {
      metrics_of(lines);
    } catch (const DataError& error) {
      return error.problems();
    }
    return {};
  }

  TemporaryDirectory dir_;
};

// Seen red: rows over logical rows; the ratio of a step without rows.
TEST_F(RunReport, StepsHaveTheirFiguresAndTheSharingRatio) {
  const auto metrics = metrics_of(
      R"({"step":2,"skipped":true,"rows":0,"logical_rows":0})"
      "\n"
      R"({"step":1,"loss":0.5,"rows":10,"logical_rows":25,"seconds":{"plan":0.1},"sharing":"MIXED"})"
      "\n");
  ASSERT_THAT(metrics.steps, SizeIs(2));
  EXPECT_EQ(metrics.steps[0].step, 1);
  EXPECT_EQ(metrics.steps[0].figure("seconds.plan"), 0.1);
  EXPECT_EQ(metrics.steps[0].figure("sharing_ratio"), 2.5);
  EXPECT_EQ(metrics.steps[0].sharing, "MIXED");
  EXPECT_TRUE(metrics.steps[1].skipped);
  EXPECT_EQ(metrics.steps[1].figure("sharing_ratio"), std::nullopt);
  EXPECT_THAT(metrics.values("loss"), ElementsAre(0.5));
  EXPECT_FALSE(metrics.curve("kl", "kl", 0));
}

// 401 steps are more than 400 points: of two each. Values 1, 2, 3, ...: means 1.5, 3.5, ... at
// steps 1.5, 3.5, ...; the last point is step 401 alone.
//
// Seen red: every second step drawn in place of the mean of two.
TEST_F(RunReport, ManyStepsAreDrawnAsMeansWithTheirSpan) {
  std::string lines;
  for (int step = 1; step <= 401; ++step)
    lines += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(step) + "}\n";
  const auto metrics = metrics_of(lines);
  EXPECT_EQ(metrics.steps_of_a_point(), 2);
  const auto curve = metrics.curve("loss", "loss", 0);
  ASSERT_TRUE(curve);
  ASSERT_THAT(curve->x, SizeIs(201));
  for (std::size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(curve->x[i], 2.0 * static_cast<double>(i) + 1.5);
    EXPECT_EQ(curve->y[i], curve->x[i]);
    EXPECT_EQ(curve->high[i] - curve->low[i], 1.0);
  }
  EXPECT_EQ(curve->y.back(), 401.0);
  lines.resize(lines.rfind('\n', lines.size() - 2) + 1);
  EXPECT_EQ(metrics_of(lines).steps_of_a_point(), 1);
  EXPECT_THAT(metrics_of(lines).curve("loss", "loss", 0)->low, SizeIs(0));
}

// Seen red: a torn line left out untold.
TEST_F(RunReport, LeavesOutATornLastLineAndRefusesOthersTogether) {
  EXPECT_TRUE(metrics_of("{\"step\":1}\n{\"ste").torn);
  EXPECT_THAT(problems_of("1\n{\"loss\":2}\n{\"step\":1}\n"),
              ElementsAre(HasSubstr("metrics.jsonl:1: is no step"),
                          HasSubstr("metrics.jsonl:2: is no step")));
  EXPECT_THAT(problems_of(""), ElementsAre(HasSubstr("has no steps")));
  EXPECT_THROW(read_run_metrics(dir_ / "nothing.jsonl"), IoError);
}

// Seen red: a negative figure on an axis that begins at 0, which gnuplot refuses.
TEST_F(RunReport, FiguresOfAnySizeAreDrawn) {
  write_file(dir_ / "metrics.jsonl",
             "{\"step\":5,\"loss\":0,\"grad_norm\":1e308,\"entropy\":-1e-300,\"rows\":1,"
             "\"logical_rows\":1}\n");
  write_run_report(dir_.path());
  EXPECT_THAT(read_file(dir_ / "run_report.html"), HasSubstr("Gradient norm before clipping"));
  EXPECT_THAT(dir_.names(), ElementsAre("metrics.jsonl", "run_report.html"));
}

}  // namespace
}  // namespace coppice::test
