// What `--trace` writes: held against the metrics of the same steps, which are counted elsewhere.
#include <unistd.h>

#include <map>
#include <set>

#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

const std::set<std::string> kPhases = {"plan",     "forward", "head",
                                       "backward", "reduce",  "optimizer"};

class TraceOfARun : public TinyRunOfRanks {
 protected:
  json trace_of(std::vector<std::string> set, int ranks = 0, const std::string& file = "t.json") {
    set.push_back("threads_per_rank=1");
    auto arguments = train_arguments(set);
    arguments.insert(arguments.end(), {"--trace", file});
    const auto outcome = run_program(arguments, dir_.path().string(), ranks);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("--trace"), std::string::npos) << outcome.err;
    return json::parse(read_file(dir_ / file));
  }
};

std::vector<json> events_of(const json& trace, int rank, const std::string& category = "") {
  std::vector<json> chosen;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["pid"] == rank &&
        (category.empty() || event["cat"] == category))
      chosen.push_back(event);
  return chosen;
}

std::set<std::string> names_of(const std::vector<json>& events) {
  std::set<std::string> names;
  for (const json& event : events) names.insert(event["name"].get<std::string>());
  return names;
}

// Of a step, by phase: the metrics' phases, for what they count.
bool is_counted(const json& event, std::int64_t step) {
  const json& args = event["args"];
  return args.value("step", 0) == step && kPhases.contains(args.value("phase", ""));
}

// Nanoseconds, which microseconds with three digits hold.
std::int64_t ns(const json& microseconds) { return std::llround(microseconds.get<double>() * 1e3); }

// Events of the thread that drives a rank come by their beginnings, so a stack of those still open
// holds those around one.
void expect_nested(const std::vector<json>& events) {
  std::vector<std::int64_t> ends;
  std::int64_t last = 0;
  for (const json& event : events) {
    if (event["tid"] != 0) continue;
    const auto begin = ns(event["ts"]), end = begin + ns(event["dur"]);
    EXPECT_GE(begin, last);
    last = begin;
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    if (!ends.empty()) {
      EXPECT_LE(end, ends.back()) << event;
    }
    ends.push_back(end);
  }
}

TEST_F(TraceOfARun, HoldsEveryStepMicrobatchPhaseLayerAndOp) {
  const json trace = trace_of({"checkpoint.every_steps=2", "loss.updates_per_batch=2"});
  const auto events = events_of(trace, 0);
  expect_nested(events);
  EXPECT_EQ(trace["otherData"]["omitted_events"], 0);
  EXPECT_THAT(names_of(events_of(trace, 0, "step")),
              ElementsAre("step 1", "step 2", "step 3", "step 4"));
  EXPECT_THAT(names_of(events_of(trace, 0, "phase")),
              ElementsAre("backward", "checkpoint", "forward", "head", "old_logprobs", "optimizer",
                          "plan", "reduce"));
  EXPECT_THAT(
      names_of(events_of(trace, 0, "module")),
      ElementsAre("down_proj_backward", "down_proj_forward", "gate_up_proj_backward",
                  "gate_up_proj_forward", "head_forward", "head_forward_backward",
                  "o_proj_backward", "o_proj_forward", "qkv_proj_backward", "qkv_proj_forward"));
  EXPECT_THAT(names_of(events_of(trace, 0, "op")),
              IsSupersetOf({"gemm", "attention_forward", "attention_backward", "rms_norm_forward",
                            "rms_norm_backward", "rope_forward", "rope_backward", "swiglu_forward",
                            "swiglu_backward", "embedding_forward", "embedding_backward",
                            "logprob_statistics", "logprob_gradient", "adamw_update",
                            "sum_of_squares", "zero_gradients"}));
  // Every micro-batch goes through all layers, and back.
  const auto layers =
      json::parse(read_file(dir_ / "config.json"))["num_hidden_layers"].get<std::int64_t>();
  std::map<std::string, std::vector<std::int64_t>> walks;
  for (const json& event : events_of(trace, 0, "layer")) {
    const json& args = event["args"];
    walks[args["step"].dump() + " " + args["microbatch"].dump() + " " +
          args["phase"].get<std::string>()]
        .push_back(args["layer"].get<std::int64_t>());
  }
  std::vector<std::int64_t> up, down;
  for (std::int64_t i = 0; i < layers; ++i) {
    up.push_back(i);
    down.insert(down.begin(), i);
  }
  for (const auto& [walk, met] : walks)
    EXPECT_EQ(met, walk.ends_with("backward") ? down : up) << walk;
  for (const json& step : metrics("run"))
    for (std::int64_t m = 0; m < step["microbatches"]; ++m)
      for (const char* phase : {"forward", "backward"})
        EXPECT_TRUE(walks.contains(step["step"].dump() + " " + std::to_string(m) + " " + phase));
}

// An event holds the stopwatch of its phase and lies in its step. So it is longer than the metric,
// by no more than what the step spent outside of all phases.
// Mutation seen red: the metrics count all of the head as forward.
TEST_F(TraceOfARun, AgreesWithTheMetricsSeconds) {
  const json trace = trace_of({});
  for (const json& step : metrics("run")) {
    const auto number = step["step"].get<std::int64_t>();
    std::map<std::string, double> seconds;
    double whole = 0;
    for (const json& event : events_of(trace, 0, "phase"))
      if (is_counted(event, number))
        seconds[event["name"].get<std::string>()] += event["dur"].get<double>() * 1e-6;
    for (const json& event : events_of(trace, 0, "step"))
      if (event["args"]["step"] == number) whole = event["dur"].get<double>() * 1e-6;
    const double head = seconds["head"];
    seconds["forward"] += head / 3;
    seconds["backward"] += 2 * head / 3;
    double outside = whole;
    for (const char* phase : {"plan", "forward", "backward", "optimizer"})
      outside -= step["seconds"][phase].get<double>();
    EXPECT_GE(outside, 0);
    for (const char* phase : {"plan", "forward", "backward", "optimizer"}) {
      const double told = step["seconds"][phase].get<double>();
      EXPECT_GE(seconds[phase], told) << phase;
      EXPECT_LE(seconds[phase], told + outside) << phase;
    }
    EXPECT_GE(whole, step["step_seconds"].get<double>());
  }
}

// Every matrix product of the step, forward and backward, once: what the metrics count from the
// model's config. Mutations seen red: backward's attention counted as forward's; twice the bytes of
// a collective.
TEST_F(TraceOfARun, HoldsAllFlopsAndBytesOfAStepOnAnyGrid) {
  const std::vector<std::pair<int, std::vector<std::string>>> grids = {
      {0, {}},
      {2, {"parallel.tensor=2", "parallel.sequence_parallel=false"}},
      {2, {"parallel.context=2", "loss.updates_per_batch=2"}},
      {2, {"parallel.data=2", "parallel.zero=NONE"}}};
  for (std::size_t i = 0; i < grids.size(); ++i) {
    auto [ranks, set] = grids[i];
    SCOPED_TRACE(i);
    const std::string run = "run" + std::to_string(i);
    set.insert(set.end(), {"run_dir=" + run, "model.checkpoint=ranks.h5", "limits.max_steps=2"});
    const json trace = trace_of(set, ranks);
    for (const json& step : metrics(run)) {
      double flops = 0, bytes = 0;
      for (int rank = 0; rank < std::max(1, ranks); ++rank)
        for (const json& event : events_of(trace, rank))
          if (is_counted(event, step["step"].get<std::int64_t>())) {
            flops += event["args"].value("flops", 0.0);
            bytes += event["args"].value("bytes", 0.0);
          }
      EXPECT_EQ(flops, step["executed_flops"].get<double>());
      EXPECT_EQ(bytes, step.value("communication_bytes", 0.0));
    }
  }
}

TEST_F(TraceOfARun, HoldsBothRanksByNameOnOneClock) {
  const json trace =
      trace_of({"parallel.tensor=2", "model.checkpoint=ranks.h5", "checkpoint.every_steps=1"}, 2);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::map<int, std::string> names;
  for (const json& event : trace["traceEvents"])
    if (event["name"] == "process_name")
      names[event["pid"].get<int>()] = event["args"]["name"].get<std::string>();
  EXPECT_EQ(names, (std::map<int, std::string>{{0, "rank 0 on " + std::string(host)},
                                               {1, "rank 1 on " + std::string(host)}}));
  std::vector<std::vector<json>> collectives, under_compute;
  for (int rank = 0; rank < 2; ++rank) {
    expect_nested(events_of(trace, rank));
    EXPECT_THAT(names_of(events_of(trace, rank, "step")), Contains("step 4"));
    auto& driven = collectives.emplace_back();
    auto& beside = under_compute.emplace_back();
    for (const json& event : events_of(trace, rank, "collective"))
      (event["tid"] == 0 ? driven : beside).push_back(event);
    EXPECT_EQ(events_of(trace, rank, "wait").size(), beside.size());
  }
  // Sums of gradients of two linears in each of two layers, and the rows gathered for them.
  EXPECT_THAT(names_of(under_compute[0]), ElementsAre("all_gather", "reduce_scatter"));
  for (int rank = 0; rank < 2; ++rank) {
    auto& all = collectives[static_cast<std::size_t>(rank)];
    const auto& beside = under_compute[static_cast<std::size_t>(rank)];
    all.insert(all.end(), beside.begin(), beside.end());
  }
  // The same collectives on both; none can end on one rank before it began on the other.
  ASSERT_EQ(collectives[0].size(), collectives[1].size());
  ASSERT_FALSE(collectives[0].empty());
  for (std::size_t i = 0; i < collectives[0].size(); ++i) {
    const json &one = collectives[0][i], &other = collectives[1][i];
    EXPECT_EQ(one["name"], other["name"]);
    EXPECT_EQ(one["args"]["axis"], other["args"]["axis"]);
    if (one["name"] != "all_reduce") continue;  // others need not wait for who sends nothing
    EXPECT_LE(ns(one["ts"]), ns(other["ts"]) + ns(other["dur"])) << one << other;
    EXPECT_LE(ns(other["ts"]), ns(one["ts"]) + ns(one["dur"])) << one << other;
  }
}

TEST_F(TraceOfARun, ChangesNoBit) {
  trace_of({"run_dir=traced"});
  ASSERT_EQ(train({"run_dir=plain", "threads_per_rank=1"}).status, 0);
  const auto traced = checkpoint_values(checkpoint("traced", 4), "/");
  EXPECT_TRUE(traced == checkpoint_values(checkpoint("plain", 4), "/"));
  const auto with = metrics("traced"), without = metrics("plain");
  ASSERT_EQ(with.size(), without.size());
  for (std::size_t i = 0; i < with.size(); ++i)
    EXPECT_EQ(without_times(with[i]), without_times(without[i]));
}

TEST_F(TraceOfARun, MayLieInTheRunDirectoryAndIsRefusedWhereItHarms) {
  trace_of({"limits.max_steps=1"}, 0, "run/trace.json");
  const auto before = files_below(dir_.path());
  for (const char* place : {"", "absent/t.json", "run", "run/metrics.jsonl", "model.h5",
                            "run.textproto", "rollouts.jsonl", "run/checkpoints/t.json"}) {
    auto arguments = train_arguments({});
    arguments.insert(arguments.end(), {"--trace", place});
    const auto outcome = coppice(arguments);
    EXPECT_EQ(outcome.status, 2) << place << outcome.err;
    EXPECT_THAT(outcome.problems(), ElementsAre(HasSubstr("--trace")));
    EXPECT_EQ(files_below(dir_.path()), before);
  }
}

TEST_F(TraceOfARun, OfAScoreHoldsItsForward) {
  const auto outcome = coppice({"score", "--checkpoint", "model.h5", "--rollouts", "rollouts.jsonl",
                                "--out", "scores.jsonl", "--trace", "t.json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json trace = json::parse(read_file(dir_ / "t.json"));
  expect_nested(events_of(trace, 0));
  EXPECT_THAT(names_of(events_of(trace, 0, "phase")), ElementsAre("forward", "plan", "reduce"));
  EXPECT_THAT(names_of(events_of(trace, 0, "module")), Contains("head_forward"));
  const auto same = coppice({"score", "--checkpoint", "model.h5", "--rollouts", "rollouts.jsonl",
                             "--out", "t.json", "--trace", "t.json"});
  EXPECT_EQ(same.status, 2);
  EXPECT_THAT(same.problems(), ElementsAre(HasSubstr("--trace t.json: is --out too.")));
}

}  // namespace
}  // namespace coppice::test
