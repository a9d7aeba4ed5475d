#include "launch/trace_file.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json parsed(const Trace& trace, const TracedRank& rank, std::int64_t zero) {
  return json::parse("[" + trace_json(trace, rank, zero) + "]");
}

TEST(TraceFile, NamesTheRankAndItsHost) {
  const auto events = parsed(Trace(), {.rank = 5, .host = "node \"b\"", .place = {1, 0, 2}}, 0);
  ASSERT_EQ(events.size(), 4U);
  for (const auto& event : events) {
    EXPECT_EQ(event["ph"], "M");
    EXPECT_EQ(event["pid"], 5);
  }
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "rank 5 on node \"b\"");
  EXPECT_EQ(events[1]["args"]["labels"], "tensor 1, context 0, data 2");
}

// Mutations seen red: the outermost phase instead of the innermost; only those around an event, not
// the event itself.
TEST(TraceFile, TellsOfEachEventWhereItLies) {
  Trace trace;
  {
    const TraceScope step(&trace, TraceKind::kStep, "step", {.index = 7});
    const TraceScope phase(&trace, TraceKind::kPhase, "forward");
    {
      const TraceScope layer(&trace, TraceKind::kLayer, "layer", {.index = 2});
      const TraceScope module(&trace, TraceKind::kModule, "qkv_proj_forward");
      const TraceScope gemm(&trace, "gemm", {.rows = 8, .flops = 4096});
    }
    const TraceScope inner(&trace, TraceKind::kPhase, "head");
    const TraceScope sum(&trace, TraceKind::kCollective, "all_reduce",
                         {.bytes = 24, .axis = "tensor"});
  }
  const std::int64_t zero = trace.start_unix_ns() - 5'000'001;
  const auto events = parsed(trace, {}, zero);
  ASSERT_EQ(events.size(), 4U + 7U);
  const auto &step = events[4], &layer = events[6], &gemm = events[8], &sum = events[10];
  EXPECT_EQ(step["name"], "step 7");
  EXPECT_EQ(step["cat"], "step");
  EXPECT_EQ(step["ph"], "X");
  EXPECT_GE(step["ts"], 5000.001);
  EXPECT_EQ(layer["name"], "layer 2");
  EXPECT_EQ(layer["args"], json({{"step", 7}, {"phase", "forward"}, {"layer", 2}}));
  EXPECT_EQ(gemm["name"], "gemm");
  EXPECT_EQ(gemm["cat"], "op");
  json args = gemm["args"];
  if (gemm["dur"] > 0) {
    EXPECT_NEAR(args["gflop_per_second"], 4.096 / gemm["dur"].get<double>(), 0.005);
  }
  args.erase("gflop_per_second");
  EXPECT_EQ(args,
            json({{"step", 7}, {"phase", "forward"}, {"layer", 2}, {"rows", 8}, {"flops", 4096}}));
  EXPECT_EQ(sum["cat"], "collective");
  EXPECT_EQ(sum["args"], json({{"step", 7}, {"phase", "head"}, {"axis", "tensor"}, {"bytes", 24}}));
}

// Mutation seen red: all on the driver's row.
TEST(TraceFile, PutsCollectivesUnderComputeOnARowForEachAxis) {
  Trace trace;
  {
    const TraceScope step(&trace, TraceKind::kStep, "step", {.index = 7});
    const auto begin = std::chrono::steady_clock::now();
    const TraceSpan ran{begin, begin + std::chrono::microseconds(3)};
    for (const char* axis : {"replicas", "tensor", "replicas"})
      trace.add_background("reduce_scatter", ran, trace.innermost(), {.bytes = 8, .axis = axis});
    const TraceScope wait(&trace, TraceKind::kWait, "reduce_scatter", {.axis = "replicas"});
  }
  const auto events = parsed(trace, {}, trace.start_unix_ns());
  ASSERT_EQ(events.size(), 4U + 2U + 2U + 3U);
  const auto &wait = events[5], &row = events[6], &first = events[7], &other = events[9];
  EXPECT_EQ(wait["cat"], "wait");
  EXPECT_EQ(wait["tid"], 0);
  EXPECT_EQ(row["args"]["name"], "replicas axis");
  EXPECT_EQ(row["tid"], 1);
  EXPECT_EQ(first["cat"], "collective");
  EXPECT_EQ(first["tid"], 1);
  EXPECT_EQ(first["dur"], 3.0);
  EXPECT_EQ(first["args"], json({{"step", 7}, {"axis", "replicas"}, {"bytes", 8}}));
  EXPECT_EQ(other["tid"], 2);
  EXPECT_EQ(events[10]["tid"], 1);
}

TEST(TraceFile, SaysWhereItBecameFull) {
  Trace trace(1);
  for (int i = 0; i < 3; ++i) const TraceScope op(&trace, "op");
  const auto events = parsed(trace, {.rank = 1, .host = "a", .place = {}}, trace.start_unix_ns());
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(events[5]["ph"], "i");
  EXPECT_EQ(events[5]["pid"], 1);
  EXPECT_EQ(events[5]["args"]["omitted"], 2);
  EXPECT_GE(events[5]["ts"], events[4]["ts"]);
}

class PlaceOfATrace : public testing::Test {
 protected:
  std::vector<std::string> problems(const std::string& file, const std::string& run = "run") const {
    Problems found;
    check_trace_file(file.empty() ? "" : dir_ / file, dir_ / run, {dir_ / "model.h5"}, found);
    try {
      found.throw_if_any<ConfigError>();
    } catch (const ConfigError& error) {
      return error.problems();
    }
    return {};
  }
  test::TemporaryDirectory dir_;
};

TEST_F(PlaceOfATrace, MayBeAFileBesideTheRunOrWithinIt) {
  EXPECT_THAT(problems("trace.json"), IsEmpty());
  EXPECT_THAT(problems("run/trace.json"), IsEmpty());  // before there is a run directory
  std::filesystem::create_directory(dir_ / "run");
  EXPECT_THAT(problems("run/trace.json"), IsEmpty());
  EXPECT_THAT(problems("run/../trace.json"), IsEmpty());
}

TEST_F(PlaceOfATrace, IsNoneThatTheRunUsesOrReads) {
  std::ofstream(dir_ / "model.h5") << "weights";
  EXPECT_THAT(problems(""), ElementsAre("--trace is empty. Give a name."));
  EXPECT_THAT(problems("model.h5"), ElementsAre(HasSubstr("is an input of this command")));
  EXPECT_THAT(problems("absent/trace.json"), ElementsAre(HasSubstr("does not exist. Make it")));
  EXPECT_THAT(problems("run"), ElementsAre(HasSubstr("the run itself uses")));
  EXPECT_THAT(problems("runs", "runs/x"), ElementsAre(HasSubstr("the run itself uses")));
  EXPECT_THAT(problems("run/"), ElementsAre(HasSubstr("the run itself uses")));
  for (const bool exists : {false, true}) {
    if (exists) std::filesystem::create_directory(dir_ / "run");
    for (const char* name : {"config.textproto", "metrics.jsonl", "checkpoints",
                             "checkpoints/step_00000001.h5", "../run/./metrics.jsonl"})
      EXPECT_THAT(problems(std::string("run/") + name),
                  ElementsAre(HasSubstr("the run itself uses")));
  }
  EXPECT_THAT(problems("", "run"), ElementsAre("--trace is empty. Give a name."));
  std::filesystem::create_directory(dir_ / "directory");
  EXPECT_THAT(problems("directory"), ElementsAre(HasSubstr("is no file that could be replaced")));
}

}  // namespace
}  // namespace coppice
