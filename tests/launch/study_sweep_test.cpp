// The points of a study, their order, and what their records come to. Lists and figures are written
// by hand.
#include "launch/study_sweep.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "launch/study_csv.hpp"
#include "launch/study_figures.hpp"
#include "launch/study_records.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

StudySweep small_sweep() {
  return {.prefix_length = {128, 512},
          .response_length = {32},
          .group_size = {2, 4},
          .sharing = {"GROUPED", "REPEATED"},
          .recompute = {"NONE"},
          .grid = {GridSizes{}, {.tensor = 2}}};
}

TEST(StudySweep, MakesEveryCombinationWithSharingFastest) {
  std::vector<std::string> descriptions;
  for (const auto& point : points_of(1, small_sweep()))
    descriptions.push_back(description_of(point));
  EXPECT_EQ(point_count(1, small_sweep()), 16);
  ASSERT_THAT(descriptions, SizeIs(16));
  descriptions.resize(6);
  EXPECT_THAT(descriptions, ElementsAre("P=128 R=32 G=2 GROUPED", "P=128 R=32 G=2 REPEATED",
                                        "P=128 R=32 G=2 GROUPED tensor 2 context 1 data 1",
                                        "P=128 R=32 G=2 REPEATED tensor 2 context 1 data 1",
                                        "P=128 R=32 G=4 GROUPED", "P=128 R=32 G=4 REPEATED"));
}

TEST(StudySweep, CountsBeyondAnyStudyWithoutOverflow) {
  StudySweep sweep = small_sweep();
  sweep.prefix_length.assign(100'000, 1);
  sweep.response_length = sweep.group_size = sweep.prefix_length;
  EXPECT_EQ(point_count(1'000'000, sweep), std::numeric_limits<std::int64_t>::max());
}

TEST(StudySweep, RecordedGroupsAreOneValueOfEachLength) {
  StudySweep sweep = small_sweep();
  sweep.prefix_length.clear();
  sweep.response_length.clear();
  sweep.group_size.clear();
  const auto points = points_of(3, sweep);
  ASSERT_THAT(points, SizeIs(12));
  EXPECT_EQ(point_count(3, sweep), 12);
  EXPECT_EQ(points[4].model, 1U);
  EXPECT_EQ(description_of(points[4]), "GROUPED");
}

// Seen red: the order kept in every repetition; the reversal over all points.
TEST(StudySweep, AlternatesSharingAndTurnsItRoundInEveryOtherRepetition) {
  StudySweep sweep = small_sweep();
  sweep.prefix_length = {128};
  sweep.grid = {GridSizes{}};
  std::vector<std::pair<std::size_t, std::int64_t>> order;
  for (const auto& run : runs_of(points_of(1, sweep), 3))
    order.emplace_back(run.point, run.repetition);
  const auto at = [](std::size_t point, std::int64_t repetition) {
    return std::pair(point, repetition);
  };
  EXPECT_THAT(order, ElementsAre(at(0, 0), at(1, 0), at(2, 0), at(3, 0),  //
                                 at(1, 1), at(0, 1), at(3, 1), at(2, 1),  //
                                 at(0, 2), at(1, 2), at(2, 2), at(3, 2)));
}

class StudyFiles : public testing::Test {
 protected:
  StudyFiles() {
    StudySweep sweep = small_sweep();
    sweep.prefix_length = {128};
    sweep.group_size = {2};
    sweep.grid = {GridSizes{}};
    points_ = points_of(1, sweep);
  }
  StudyRecord record(std::size_t point, std::int64_t repetition, StudyFigures figures) const {
    return {{point, repetition}, "ok", "", std::move(figures)};
  }
  TemporaryDirectory dir_;
  std::vector<SweepPoint> points_;  // grouped, repeated
};

// Seen red: what is appended known only after it is read back.
TEST_F(StudyFiles, RecordsAreReadBackAsTheyWereWritten) {
  {
    StudyRecords records(dir_ / "points.jsonl", points_, {}, {"a machine", "1.0", "a command"});
    records.append(record(1, 0, {{"step_seconds", 0.5}, {"seconds.forward", 0.25}, {"rows", 320}}));
    records.append({{0, 2}, "failed", "no \"reason\"", {}});
    EXPECT_TRUE(records.has({1, 0}));
    EXPECT_TRUE(records.has_failed(0));
  }
  EXPECT_THAT(read_file(dir_ / "points.jsonl"),
              HasSubstr(R"({"prefix_length":128,"response_length":32,"group_size":2,)"
                        R"("sharing":"REPEATED","recompute":"NONE","tensor":1,"context":1,)"
                        R"("data":1,"repetition":0,"status":"ok","step_seconds":0.5,)"
                        R"("seconds":{"forward":0.25},"rows":320,"machine":"a machine",)"
                        R"("version":"1.0","command":"a command"})"
                        "\n"));
  const StudyRecords records(dir_ / "points.jsonl", points_, {});
  ASSERT_THAT(records.all(), SizeIs(2));
  EXPECT_TRUE(records.has({1, 0}));
  EXPECT_FALSE(records.has({1, 2}));
  EXPECT_EQ(records.all()[0].figure("seconds.forward"), 0.25);
  EXPECT_EQ(records.all()[0].figure("seconds.backward"), std::nullopt);
  EXPECT_TRUE(records.has_failed(0));
  EXPECT_FALSE(records.has_failed(1));
  EXPECT_EQ(records.all()[1].error, "no \"reason\"");
}

TEST_F(StudyFiles, ATornLineIsCutOffAndAForeignOneRefused) {
  { StudyRecords(dir_ / "points.jsonl", points_, {}).append(record(0, 0, {})); }
  const std::string whole = read_file(dir_ / "points.jsonl");
  write_file(dir_ / "points.jsonl", whole + whole.substr(0, whole.size() - 1));
  { EXPECT_THAT(StudyRecords(dir_ / "points.jsonl", points_, {}).all(), SizeIs(1)); }
  EXPECT_EQ(read_file(dir_ / "points.jsonl"), whole);

  write_file(dir_ / "points.jsonl", whole + "{}\nnothing\n" + whole);
  try {
    StudyRecords(dir_ / "points.jsonl", points_, {});
    FAIL() << "took lines that are no records";
  } catch (const DataError& error) {
    EXPECT_THAT(error.problems(), ElementsAre(HasSubstr("points.jsonl:2: is no record"),
                                              HasSubstr("points.jsonl:3: is no record")));
  }
}

TEST_F(StudyFiles, FiguresAreOfOneMeasuredStep) {
  write_file(dir_ / "metrics.jsonl",
             R"({"step":1,"loss":5,"grad_norm":2,"step_seconds":9,"rows":10,"peak_memory_bytes":7})"
             "\n"
             R"({"step":2,"loss":4,"grad_norm":1,"step_seconds":1,"rows":10,"peak_memory_bytes":7,)"
             R"("seconds":{"forward":0.5}})"
             "\n"
             R"({"step":3,"loss":3,"step_seconds":4,"rows":20,"peak_memory_bytes":8})"
             "\n"
             R"({"step":4,"loss":3,"step_seconds":2,"rows":10,"peak_memory_bytes":8})"
             "\n");
  const StudyRecord made = record(0, 0, figures_of_run(dir_ / "metrics.jsonl", 1, 3));
  EXPECT_EQ(made.figure("step_seconds"), 2) << "the median without the first";
  EXPECT_EQ(made.figure("seconds.forward"), 0.5);
  EXPECT_EQ(made.figure("rows"), 40.0 / 3);
  EXPECT_EQ(made.figure("peak_memory_bytes"), 8);
  EXPECT_EQ(made.figure("loss"), 5) << "of the first step";
  EXPECT_EQ(made.figure("grad_norm"), 2);
  EXPECT_EQ(made.figure("communication_bytes"), std::nullopt);
  EXPECT_THROW(figures_of_run(dir_ / "metrics.jsonl", 1, 4), DataError);
}

TEST_F(StudyFiles, ASkippedStepIsAFailure) {
  write_file(dir_ / "metrics.jsonl", "{\"step\":1,\"skipped\":true}\n{\"step\":2}\n");
  EXPECT_THROW(figures_of_run(dir_ / "metrics.jsonl", 1, 1), DataError);
}

TEST_F(StudyFiles, TheLargestDifferenceOfALogprobIsFound) {
  write_file(dir_ / "a", "{\"responses\":[{\"logprobs\":[-1,-2]},{\"logprobs\":[]}]}\n");
  write_file(dir_ / "b", "{\"responses\":[{\"logprobs\":[-1.25,-1.5]},{\"logprobs\":[]}]}\n");
  write_file(dir_ / "c", "{\"responses\":[{\"logprobs\":[-1]},{\"logprobs\":[]}]}\n");
  EXPECT_EQ(logprob_difference(dir_ / "a", dir_ / "b"), 0.5);
  EXPECT_THROW(logprob_difference(dir_ / "a", dir_ / "c"), DataError);
}

// Differences by hand: |1 - 0.5| / 2 with advantages of mean size 2; |4 - 5| / 5.
TEST_F(StudyFiles, ATableComparesAPointWithItselfRepeated) {
  const std::vector<StudyRecord> records = {
      record(0, 0,
             {{"step_seconds", 1},
              {"loss", 1},
              {"grad_norm", 4},
              {"advantage_abs_mean", 2},
              {"executed_flops", 8e9},
              {"logprob_difference", 0.125}}),
      record(1, 0, {{"step_seconds", 6}, {"loss", 0.5}, {"grad_norm", 5}}),
      record(0, 1, {{"step_seconds", 3}, {"loss", 1}, {"grad_norm", 4}, {"executed_flops", 8e9}}),
      {{1, 1}, "failed", "one, two", {}}};
  const std::string table = study_csv(points_, {}, records);
  EXPECT_THAT(table, HasSubstr("\n128,32,2,GROUPED,NONE,1,1,1,ok,2,2,"));
  EXPECT_THAT(table, HasSubstr(",4,3,0.25,0.2,0.125,\n"))
      << "rate, speed-up and the three differences";
  EXPECT_THAT(table, HasSubstr("\n128,32,2,REPEATED,NONE,1,1,1,failed,1,6,"));
  EXPECT_THAT(table, HasSubstr(",,,,,\"one, two\"\n"));
}

}  // namespace
}  // namespace coppice::test
