// The metrics file: what a line holds, and what happens to the lines of a run that is taken up
// again.
#include "rl/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "rl/temporary_file.hpp"

namespace coppice {
namespace {

using nlohmann::json;

TEST(Metrics, AFigureThatDoesNotApplyOrIsNotFiniteIsAbsent) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = 0.1;
  metrics.skipped = true;
  const json line = json::parse(to_json(metrics));
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["skipped"], true);
  EXPECT_EQ(line["grad_norm"], 0.1);
  for (const char* name : {"loss", "kl", "reward_mean", "ratio_mean", "learning_rate", "sharing",
                           "rows_per_second", "mfu", "communication_bytes"})
    EXPECT_FALSE(line.contains(name)) << name;
  EXPECT_FALSE(line["seconds"].contains("checkpoint"));
}

TEST(Metrics, RatesAndFlopsFollowFromTheCounts) {
  StepMetrics metrics;
  metrics.rows = 50;
  metrics.logical_rows = 80;
  metrics.step_seconds = 0.5;
  metrics.executed_flops = 123456789012345.0;
  metrics.sharing = "GROUPED";
  const std::string text = to_json(metrics);
  const json line = json::parse(text);
  EXPECT_EQ(line["rows_per_second"], 100.0);
  EXPECT_EQ(line["logical_tokens_per_second"], 160.0);
  EXPECT_THAT(text, testing::HasSubstr("\"executed_flops\":123456789012345,"));
  EXPECT_EQ(line["sharing"], "GROUPED");
}

TEST(Metrics, TrafficIsToldByAxis) {
  StepMetrics metrics;
  metrics.alignment_rows = 3;
  metrics.communication_bytes = 28;
  metrics.communication = {{"tensor", 2, 20, 0.25}, {"world", 1, 8, 0.5}};
  const json line = json::parse(to_json(metrics));
  EXPECT_EQ(line["alignment_rows"], 3);
  EXPECT_EQ(line["communication_bytes"], 28);
  EXPECT_EQ(line["communication"],
            json::parse(R"({"tensor": {"calls": 2, "bytes": 20, "seconds": 0.25},
                            "world": {"calls": 1, "bytes": 8, "seconds": 0.5}})"));
  EXPECT_FALSE(json::parse(to_json({})).contains("communication"));
}

constexpr const char* kThreeLines = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n";

TEST(MetricsFile, LinesBeyondTheCheckpointAndATornOneAreRemovedAndLaterOnesAppended) {
  const test::TemporaryFile file("m.jsonl", std::string(kThreeLines) + "{\"step\":4,\"lo");
  MetricsFile metrics(file.path(), 2, "{\"step\":2}");
  EXPECT_THAT(file.text(), testing::StartsWith(kThreeLines));  // untouched before the first line
  metrics.write("{\"step\":3,\"again\":1}");
  EXPECT_EQ(file.text(), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":1}\n");
}

TEST(MetricsFile, TheLineOfTheCheckpointIsPutBackWhereItIsMissing) {
  const test::TemporaryFile file("m.jsonl", "{\"step\":1}\n");
  MetricsFile(file.path(), 2, "{\"step\":2}").write("{\"step\":3}");
  EXPECT_EQ(file.text(), kThreeLines);
}

TEST(MetricsFile, SettlesBeforeAnyLineAndThenChangesNothing) {
  const test::TemporaryFile file("m.jsonl", "{\"step\":1}\n{\"step\":3}\n");
  MetricsFile(file.path(), 2, "{\"step\":2}").settle();
  EXPECT_EQ(file.text(), "{\"step\":1}\n{\"step\":2}\n");
  const auto time = std::filesystem::last_write_time(file.path());
  MetricsFile(file.path(), 2, "{\"step\":2}").settle();
  EXPECT_EQ(std::filesystem::last_write_time(file.path()), time);
}

TEST(MetricsFile, ANewRunBeginsWithAnEmptyFile) {
  const test::TemporaryFile file("m.jsonl", kThreeLines);
  MetricsFile(file.path(), 0, "").write("{\"step\":1}");
  EXPECT_EQ(file.text(), "{\"step\":1}\n");
  const test::TemporaryDirectory directory;
  MetricsFile(directory.path() / "new.jsonl", 0, "").write("{\"step\":1}");
  EXPECT_EQ(test::read_file(directory.path() / "new.jsonl"), "{\"step\":1}\n");
}

}  // namespace
}  // namespace coppice
