// `coppice plan` against what the run it plans then counts.
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::HasSubstr;

class Plan : public TinyRun {};

// Seen red with: edges for masked tokens too.
TEST_F(Plan, TellsTheVeryFiguresThatTheRunThenCounts) {
  for (const std::vector<std::string>& set :
       {std::vector<std::string>{"run_dir=grouped"},
        {"run_dir=repeated", "batching.sharing=REPEATED", "numerics.precision=F64"},
        {"run_dir=auto", "batching.sharing=AUTO", "batching.max_rows_per_microbatch=30",
         "loss.updates_per_batch=2", "numerics.recompute=BLOCK"}}) {
    const auto planned = plan(set);
    ASSERT_EQ(train(set).status, 0);
    const auto steps = metrics(set[0].substr(set[0].find('=') + 1));
    ASSERT_EQ(planned.at("steps").size(), steps.size());
    std::int64_t peak = 0, rows = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const char* key :
           {"step", "groups", "responses", "loss_tokens", "microbatches", "rows", "logical_rows",
            "visible_pairs", "edge_rows", "executed_flops", "sharing"})
        EXPECT_EQ(planned["steps"][i].at(key), steps[i].at(key)) << key << " of step " << i + 1;
      peak = std::max(peak, steps[i].at("peak_memory_bytes").get<std::int64_t>());
      rows += steps[i].at("rows").get<std::int64_t>();
    }
    EXPECT_EQ(planned["total"]["rows"], rows);
    EXPECT_EQ(planned["total"]["steps"], steps.size());
    EXPECT_NEAR(planned["peak_memory_bytes"].get<double>(), static_cast<double>(peak),
                0.05 * static_cast<double>(peak));
  }
}

// As in the metrics: a figure that does not apply is absent.
TEST_F(Plan, NamesNoSharingForAStepThatRunsNoRow) {
  write_file(dir_ / "rollouts.jsonl",
             R"({"group": "g", "prompt_ids": [1], "responses": [{"ids": [], "reward": 1}]})"
             "\n");
  const auto planned = plan({"data.groups_per_step=1"});
  ASSERT_EQ(train({"data.groups_per_step=1"}).status, 0);
  EXPECT_EQ(planned["steps"][0]["rows"], 0);
  EXPECT_FALSE(planned["steps"][0].contains("sharing"));
  EXPECT_FALSE(metrics("run")[0].contains("sharing"));
}

TEST_F(Plan, PredictsTheSpeedUpAsTheRatioOfWork) {
  const auto grouped = plan({}), repeated = plan({"batching.sharing=REPEATED"});
  EXPECT_GT(grouped["predicted_speedup"], 1.0);
  EXPECT_EQ(repeated["predicted_speedup"], 1.0);
  EXPECT_EQ(grouped["predicted_speedup"].get<double>(),
            repeated["total"]["executed_flops"].get<double>() /
                grouped["total"]["executed_flops"].get<double>());
}

TEST_F(Plan, WritesNothingAndNeedsNoRunDirectory) {
  const auto before = files_below(dir_.path());
  const auto outcome = coppice({"plan", "--config", "run.textproto"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("memory at the peak"));
  EXPECT_EQ(files_below(dir_.path()), before);
}

TEST_F(Plan, HelpListsEveryKeyOfItsJson) {
  const auto help = coppice({"plan", "--help"}).out;
  const auto planned = plan({});
  for (const auto& [key, value] : planned.items()) EXPECT_THAT(help, HasSubstr(key));
  const auto& step = planned["steps"][0];
  for (const auto& [key, value] : step.items()) EXPECT_THAT(help, HasSubstr(key));
  for (const auto& [key, value] : step["ranks"][0].items()) EXPECT_THAT(help, HasSubstr(key));
}

}  // namespace
}  // namespace coppice::test
