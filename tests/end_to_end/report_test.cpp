// coppice report on what coppice train has written, and where it cannot do its work.
#include <filesystem>

#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Report : public TinyRun {};

TEST_F(Report, DrawsARunThatTrainHasWritten) {
  ASSERT_EQ(train().status, 0);
  const auto before = files_below(dir_ / "run");
  const auto outcome = coppice({"report", "run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "run/run_report.html\n");
  const std::string page = read_file(dir_ / "run/run_report.html");
  EXPECT_THAT(page, HasSubstr("4 steps (1 to 4)"));
  EXPECT_THAT(page, HasSubstr("4 steps GROUPED"));
  EXPECT_THAT(page, HasSubstr("max_steps: 4"));
  EXPECT_THAT(page, HasSubstr("No step of this run has: kl."));
  EXPECT_EQ(files_below(dir_ / "run").size(), before.size() + 1);
}

TEST_F(Report, RefusesADirectoryOfNeitherARunNorAStudy) {
  const auto before = files_below(dir_.path());
  for (const char* name : {".", "nowhere", "model.h5"}) {
    const auto outcome = coppice({"report", name});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.problems(),
                ElementsAre(HasSubstr("holds neither metrics.jsonl nor points.jsonl")));
  }
  EXPECT_EQ(coppice({"report"}).status, 2);
  EXPECT_EQ(files_below(dir_.path()), before);
}

TEST_F(Report, WithoutGnuplotSaysSoAndWritesNothing) {
  ASSERT_EQ(train().status, 0);
  Command command = program_on_ranks(0, {"report", "run"});
  command.words.insert(command.words.begin(), {"/usr/bin/env", "PATH=/nowhere"});
  const auto outcome = run_command(command, dir_.path().string());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.problems(), ElementsAre(HasSubstr("gnuplot cannot be started")));
  EXPECT_THAT(files_below(dir_ / "run"), Not(testing::Contains(HasSubstr("html"))));
}

}  // namespace
}  // namespace coppice::test
