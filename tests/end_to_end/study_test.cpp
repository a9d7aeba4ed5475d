// `coppice study` from its config to its tables: what it refuses, what it records, that it goes on
// where it was killed, and that nothing of it outlives it. Counters are worked out here from
// lengths and the tiny model's shape, by the formulas of math.md section 1 and of interface.md.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "end_to_end/program.hpp"
#include "end_to_end/run_files.hpp"

namespace coppice::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

// The rows of a table without quoted fields, by column.
std::vector<std::map<std::string, std::string>> csv_rows(const std::string& path) {
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> names;
  for (const auto& line : lines_of(path)) {
    std::vector<std::string> fields(1);
    for (const char letter : line)
      if (letter == ',')
        fields.emplace_back();
      else
        fields.back() += letter;
    if (names.empty()) {
      names = fields;
      continue;
    }
    EXPECT_EQ(fields.size(), names.size()) << line;
    auto& row = rows.emplace_back();
    for (std::size_t i = 0; i < names.size() && i < fields.size(); ++i) row[names[i]] = fields[i];
  }
  return rows;
}

class Study : public testing::Test {
 protected:
  Study() {
    fs::copy_file(golden_case("llama_tied") + "/config.json", dir_ / "config.json");
    write_file(dir_ / "base.textproto",
               "loss { entropy_coef: 0.01 }\n"
               "optimizer { learning_rate: 1e-3 }\n"
               "batching { max_rows_per_microbatch: 100000000 }\n"
               "threads_per_rank: 1\n");
  }

  // A study of these fields.
  void study(const std::string& fields) const {
    write_file(dir_ / "study.textproto", "out_dir: \"out\"\nbase: \"base.textproto\"\n" + fields);
  }
  static std::vector<std::string> arguments() { return {"study", "--config", "study.textproto"}; }
  Outcome run() const { return run_program(arguments(), dir_.path().string()); }
  std::vector<json> points() const { return json_lines(dir_ / "out/points.jsonl"); }
  std::vector<std::map<std::string, std::string>> table() const {
    return csv_rows(dir_ / "out/table.csv");
  }

  // Living processes in the study's directory: the study and what it has started.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::error_code gone;
      std::istringstream number(entry.path().filename().string());
      pid_t pid = 0;
      if (!(number >> pid) || fs::read_symlink(entry.path() / "cwd", gone) != dir_.path()) continue;
      if (!gone) found.push_back(pid);
    }
    return found;
  }
  // No longer than an end in order takes; what is left then.
  std::vector<pid_t> processes_left() const {
    for (int tries = 0; tries < 500 && !processes().empty(); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return processes();
  }
  // A child at work: the one that is not the study, whose number it is told.
  pid_t wait_for_child(pid_t study_pid) const {
    for (int tries = 0; tries < 1500; ++tries) {
      for (const pid_t pid : processes()) {
        std::ifstream command("/proc/" + std::to_string(pid) + "/cmdline");
        const std::string words((std::istreambuf_iterator<char>(command)), {});
        if (pid != study_pid && words.find("train") != words.npos) return pid;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return -1;
  }

  TemporaryDirectory dir_;
};

constexpr const char* kFresh = "model_config: \"config.json\"\n";
constexpr const char* kEight =
    "model_config: \"config.json\"\nseed: 3\n"
    "sweep { prefix_length: [16, 40] response_length: 8 group_size: [2, 4] }\n"
    "steps: 2 warmup_steps: 1 repetitions: 2\n";

struct Counts {
  double rows, pairs, edge_rows;
};
Counts counts_of(const std::string& sharing, double p, double r, double g) {
  if (sharing == "REPEATED") return {g * (p + r), g * (p + r) * (p + r + 1) / 2, g * r};
  return {p + g * r, p * (p + 1) / 2 + g * (r * p + r * (r + 1) / 2), 1 + g * (r - 1)};
}
// Two layers of width 24 with 3 heads of 8 and one of keys and values, 28 between, vocabulary 61:
// q 24x24, k and v 24x8, o 24x24, gate, up and down 24x28.
double flops_of(const Counts& counts) {
  const double linear = 2 * (24 * 24 + 2 * 24 * 8 + 24 * 24 + 3 * 24 * 28);
  return 3 *
         (2 * linear * counts.rows + 4 * 3 * 8 * 2 * counts.pairs + 2 * 61 * 24 * counts.edge_rows);
}

// Seen red: records read back without their repetition; executed_flops of all measured steps
// together; the torn line kept.
TEST_F(Study, KilledHalfWayGoesOnAndItsTablesHoldEveryPointWithTheCountersOfItsLengths) {
  study(kEight);
  {
    RunningProgram running(arguments(), dir_.path().string());
    running.wait_for_lines(dir_ / "out/points.jsonl", 5);
    running.send(SIGKILL);
    EXPECT_EQ(running.wait().status, 128 + SIGKILL);
  }
  EXPECT_THAT(processes_left(), IsEmpty()) << "a child outlived the study";
  const auto kept = lines_of(dir_ / "out/points.jsonl");
  ASSERT_GE(kept.size(), 5U);
  ASSERT_LT(kept.size(), 16U);
  EXPECT_FALSE(fs::exists(dir_ / "out/table.csv"));
  // As if it had been killed inside a write.
  std::ofstream(dir_ / "out/points.jsonl", std::ios::app) << R"({"prefix_length":16,"resp)";

  const auto outcome = run();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("going on behind point " + std::to_string(kept.size()) + " of 16"));
  const auto all = lines_of(dir_ / "out/points.jsonl");
  ASSERT_EQ(all.size(), 16U);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), all.begin())) << "what was there is kept";
  std::set<std::string> runs;
  int compared = 0;
  for (const json& point : points()) {
    EXPECT_EQ(point["status"], "ok") << point;
    runs.insert(point["prefix_length"].dump() + " " + point["group_size"].dump() + " " +
                point["sharing"].dump() + " " + point["repetition"].dump());
    compared += static_cast<int>(point.contains("logprob_difference"));
    EXPECT_GT(point["step_seconds"], 0);
    EXPECT_GT(point["seconds"]["forward"], 0);
    EXPECT_EQ(point["peak_memory_bytes"], point["predicted_memory_bytes"]);
  }
  EXPECT_EQ(runs.size(), 16U);
  EXPECT_EQ(compared, 4) << "once for each combination of lengths and group size";

  const auto rows = table();
  ASSERT_EQ(rows.size(), 8U);
  for (const auto& row : rows) {
    const double p = std::stod(row.at("prefix_length")), r = std::stod(row.at("response_length")),
                 g = std::stod(row.at("group_size"));
    const Counts counts = counts_of(row.at("sharing"), p, r, g);
    EXPECT_EQ(row.at("status"), "ok");
    EXPECT_EQ(row.at("repetitions"), "2");
    EXPECT_EQ(std::stod(row.at("rows")), counts.rows);
    EXPECT_EQ(std::stod(row.at("logical_rows")), g * (p + r));
    EXPECT_EQ(std::stod(row.at("visible_pairs")), counts.pairs);
    EXPECT_EQ(std::stod(row.at("edge_rows")), counts.edge_rows);
    EXPECT_EQ(std::stod(row.at("executed_flops")), flops_of(counts));
    const double bound = flops_of(counts_of("REPEATED", p, r, g)) / flops_of(counts);
    EXPECT_NEAR(std::stod(row.at("predicted_speedup")), bound, 1e-12 * bound);
    if (row.at("sharing") == "REPEATED") {
      EXPECT_EQ(row.at("speedup"), "");
      continue;
    }
    EXPECT_GT(std::stod(row.at("speedup")), 0);
    EXPECT_LT(std::stod(row.at("loss_difference")), 3e-5);
    EXPECT_LT(std::stod(row.at("grad_norm_difference")), 3e-5);
    EXPECT_LT(std::stod(row.at("logprob_difference")), 2e-5);
    EXPECT_GT(std::stod(row.at("logprob_difference")), 0) << "two packings, not the same twice";
  }
  for (const char* name : {"out/report.md", "out/report.html", "out/study.textproto"})
    EXPECT_TRUE(fs::exists(dir_ / name)) << name;
  EXPECT_THAT(files_below(dir_ / "out/work"), ElementsAre("model_0.h5", "rollouts.jsonl"));

  const auto again = run();
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(lines_of(dir_ / "out/points.jsonl"), all) << "a finished study does nothing more";
}

TEST_F(Study, ListsEveryProblemOfItsConfigAndItsBaseAtOnce) {
  write_file(dir_ / "base.textproto", "loss { clip_low: -1 }\nspeed: 3\n");
  study(
      "model_config: [\"config.json\", \"none.json\"]\n"
      "sweep {\n"
      "  prefix_length: [16, 0, 16]\n"
      "  group_size: 1000000000\n"
      "  sharing: [GROUPED, SHARED]\n"
      "  grid { tensor: 2 }\n"
      "  grid { tensor: 0 }\n"
      "}\n"
      "steps: 0\n"
      "colour: RED\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 2);
  const std::string place = "study.textproto:";
  EXPECT_THAT(
      outcome.problems(),
      testing::UnorderedElementsAre(
          StartsWith(place + "3:31: model_config[1]: the file \"none.json\" does not exist"),
          StartsWith(place + "5:23: sweep.prefix_length[1]: 0 is too small. Give 1 or more."),
          StartsWith(place + "5:26: sweep.prefix_length[2]: 16 stands there twice"),
          StartsWith("study.textproto: sweep.response_length: missing"),
          StartsWith(place + "6:3: sweep.group_size[0]: 1000000000 is too large"),
          StartsWith(place +
                     "7:22: sweep.sharing[1]: SHARED is not one of AUTO, GROUPED, REPEATED"),
          StartsWith(place + "9:10: sweep.grid[1].tensor: 0 is too small"),
          StartsWith(place + "11:1: steps: 0 is too small"),
          StartsWith(place + "12:1: colour: no such field. Fields of a study config: out_dir,"),
          StartsWith("base.textproto:1:8: loss.clip_low: -1 is not"),
          StartsWith("base.textproto:2:1: speed: no such field")));
  EXPECT_FALSE(fs::exists(dir_ / "out")) << "a refused command leaves no file behind";
}

TEST_F(Study, RefusesWhatDoesNotGoTogether) {
  write_file(dir_ / "rollouts.jsonl", random_rollouts({}));
  study(std::string(kFresh) +
        "rollouts: \"rollouts.jsonl\"\nsweep { group_size: 2 }\nmemory_budget_bytes: 5\n");
  EXPECT_THAT(run().problems(),
              ElementsAre(HasSubstr("sweep.group_size: does not go with rollouts"),
                          HasSubstr("memory_budget_bytes: goes with the sweep's lengths only")));
  study("sweep { prefix_length: 1 response_length: 1 group_size: 1 }\n");
  EXPECT_THAT(run().problems(),
              ElementsAre(HasSubstr("base.textproto: model.checkpoint: missing")));
  // 3 heads
  study(std::string(kFresh) +
        "sweep { prefix_length: 1 response_length: 1 group_size: 1\n"
        "grid { tensor: 1 } grid { tensor: 2 } }\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.problems(),
              ElementsAre(AllOf(StartsWith("study.textproto:5:27: sweep.grid[1].tensor"),
                                HasSubstr("num_attention_heads = 3"))));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(Study, GoesOnOnlyAsTheStudyThatBegan) {
  const std::string sweep =
      "sweep { prefix_length: 4 response_length: 2 group_size: 2 sharing: GROUPED }\n";
  study(kFresh + sweep + "repetitions: 1 steps: 1\n");
  ASSERT_EQ(run().status, 0);
  study(kFresh + sweep + "repetitions: 1 steps: 2 seed: 5\n");
  auto outcome = run();
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.problems(),
              ElementsAre(AllOf(HasSubstr("study.textproto: seed = 1 cannot change to 5")),
                          HasSubstr("study.textproto: steps = 1 cannot change to 2")));
  study(kFresh + sweep + "repetitions: 2 steps: 1\n");  // more of the same
  outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(points(), SizeIs(2));
  std::ofstream(dir_ / "base.textproto", std::ios::app) << "seed: 7\n";
  outcome = run();
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.problems(),
              ElementsAre(HasSubstr("base: base.textproto is not what it was")));
  EXPECT_THAT(points(), SizeIs(2));
}

TEST_F(Study, RecordsAPointThatFailsAndGoesOn) {
  study(std::string(kFresh) +  // the model has 256 positions
        "sweep { prefix_length: [300, 8] response_length: 4 group_size: 2 }\nsteps: 1\n"
        "repetitions: 2 compare_logprobs: false\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 of them failed"));
  ASSERT_THAT(points(), SizeIs(6)) << "what has failed is not done again";
  for (const json& point : points()) {
    if (point["prefix_length"] == 8) {
      EXPECT_EQ(point["status"], "ok");
      EXPECT_FALSE(point.contains("logprob_difference"));
      continue;
    }
    EXPECT_EQ(point["status"], "failed");
    EXPECT_THAT(std::string(point["error"]), HasSubstr("256"));
    EXPECT_FALSE(point.contains("step_seconds"));
  }
  EXPECT_THAT(lines_of(dir_ / "out/table.csv"), Contains(HasSubstr(",failed,0,")).Times(2));
}

// Seen red: every failure recorded as failed.
TEST_F(Study, RecordsAPointThatFindsNoMemoryAndGoesOn) {
  study(std::string(kFresh) +  // 800,001 rows of some 3 kB
        "sweep { prefix_length: 1 response_length: 100 group_size: [8000, 2] sharing: GROUPED }\n"
        "steps: 1 repetitions: 1\n");
  const auto outcome =
      run_command({{"/bin/sh", "-c",
                    "ulimit -v 2500000; exec " COPPICE_PROGRAM " study --config study.textproto"}},
                  dir_.path().string());
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0]["status"], "out_of_memory") << found[0];
  EXPECT_GT(found[0]["predicted_memory_bytes"], 2'000'000'000);
  EXPECT_EQ(found[1]["status"], "ok") << found[1];
}

TEST_F(Study, DoesNotStartWhatThisMachineCannotHold) {
  study(std::string(kFresh) +
        "sweep { prefix_length: 100 response_length: 50 group_size: 500 sharing: GROUPED\n"
        "  grid { data: 50000 } grid { } }\nsteps: 1 repetitions: 1\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0]["status"], "out_of_memory");
  EXPECT_THAT(std::string(found[0]["error"]), StartsWith("not run: it needs "));
  EXPECT_EQ(found[1]["status"], "ok");
}

constexpr const char* kLong =
    "model_config: \"config.json\"\n"
    "sweep { prefix_length: [200, 201] response_length: 50 group_size: 20 sharing: GROUPED }\n"
    "steps: 30 warmup_steps: 0 repetitions: 1 compare_logprobs: false\n";

TEST_F(Study, TakesAChildThatIsKilledForOneWithoutMemory) {
  study(kLong);
  RunningProgram running(arguments(), dir_.path().string());
  const pid_t child = wait_for_child(running.pid());
  ASSERT_GT(child, 0);
  kill(child, SIGKILL);
  const auto outcome = running.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0]["status"], "out_of_memory");
  EXPECT_THAT(std::string(found[0]["error"]), HasSubstr("signal 9"));
  EXPECT_EQ(found[1]["status"], "ok");
}

// Seen red: the child waited for instead of ended.
TEST_F(Study, StopsAtASignalKeepsWhatIsDoneAndGoesOn) {
  study(kLong);
  {
    RunningProgram running(arguments(), dir_.path().string());
    running.wait_for_lines(dir_ / "out/points.jsonl", 1);
    ASSERT_GT(wait_for_child(running.pid()), 0);
    const auto second = run();
    EXPECT_EQ(second.status, 2);
    EXPECT_THAT(second.problems(),
                ElementsAre(HasSubstr("out_dir: out is in use by another study")));
    running.send(SIGINT);
    const auto outcome = running.wait();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("stopped at point 1 of 2; the same command goes on"));
  }
  EXPECT_THAT(processes_left(), IsEmpty());
  EXPECT_THAT(points(), SizeIs(1));
  EXPECT_EQ(run().status, 0);
  EXPECT_THAT(points(), SizeIs(2));
}

class StudyOfGrids : public Study {
 protected:
  StudyOfGrids() {
    auto config = json::parse(read_file(dir_ / "config.json"));
    config["num_attention_heads"] = 4;
    config["num_key_value_heads"] = 2;
    config["head_dim"] = 6;
    write_file(dir_ / "config.json", config.dump());
  }
};

TEST_F(StudyOfGrids, RunsSeveralRanksUnderMpirun) {
  study(std::string(kFresh) +
        "sweep { prefix_length: 16 response_length: [8] group_size: 4 recompute: BLOCK\n"
        "  grid: [{ tensor: 1 }, { tensor: 2 data: 1 }, { context: 2 }] }\n"
        "groups_per_step: 2 steps: 1 repetitions: 1\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(6));
  for (const json& point : found) {
    EXPECT_EQ(point["status"], "ok") << point;
    EXPECT_EQ(point["recompute"], "BLOCK");
    const bool several = point["tensor"].get<int>() * point["context"].get<int>() > 1;
    EXPECT_EQ(point.contains("communication_bytes"), several);
    EXPECT_EQ(point["rows"], point["sharing"] == "GROUPED" ? 2 * (16 + 4 * 8) : 2 * 4 * (16 + 8))
        << "whatever the grid";
    EXPECT_NEAR(point["loss"], found[0]["loss"], 1e-6);
    EXPECT_NEAR(point["predicted_memory_bytes"].get<double>(),
                point["peak_memory_bytes"].get<double>(),
                0.05 * point["peak_memory_bytes"].get<double>());
  }
}

// Seen red: a child that is not told of its parent's death.
TEST_F(StudyOfGrids, KilledTakesItsRunAndItsRanksAlong) {
  for (const int tensor : {1, 2}) {
    study(std::string(kLong) + "out_dir: \"killed" + std::to_string(tensor) +
          "\" steps: 900000\nsweep { grid { tensor: " + std::to_string(tensor) + " } }\n");
    RunningProgram running(arguments(), dir_.path().string());
    ASSERT_GT(wait_for_child(running.pid()), 0);
    while (tensor > 1 && processes().size() < 4)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    running.send(SIGKILL);
    running.wait();
    EXPECT_THAT(processes_left(), IsEmpty()) << tensor << " ranks";
  }
}

TEST_F(StudyOfGrids, UnderSlurmEveryRunIsAJobStep) {
  fs::create_directory(dir_ / "bin");
  write_file(dir_ / "bin/srun",
             "#!/bin/sh\necho \"$@\" >> srun.log\n"
             "while [ \"${1#--}\" != \"$1\" ]; do shift; done\nunset SLURM_JOB_ID\nexec \"$@\"\n");
  fs::permissions(dir_ / "bin/srun", fs::perms::owner_all);
  study(std::string(kFresh) +
        "sweep { prefix_length: 4 response_length: 2 group_size: 2 sharing: GROUPED }\n"
        "steps: 1 repetitions: 1\n");
  const auto outcome = run_command({{"/bin/sh", "-c",
                                     "SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=3 PATH=\"$PWD/bin:$PATH\" "
                                     "exec " COPPICE_PROGRAM " study --config study.textproto"}},
                                   dir_.path().string());
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(lines_of(dir_ / "srun.log"),
              ElementsAre(HasSubstr("coppice init --hf-config config.json --seed 1"),
                          AllOf(StartsWith("--ntasks=1 --kill-on-bad-exit=1 --cpus-per-task=3 "),
                                HasSubstr("coppice train --config out/work/run."))));
  EXPECT_EQ(points().at(0)["status"], "ok");
}

TEST_F(Study, TakesRecordedGroupsInTheirOrder) {
  write_file(dir_ / "rollouts.jsonl", random_rollouts({.groups = 5}));
  study(
      std::string(kFresh) +
      "rollouts: \"rollouts.jsonl\"\ngroups_per_step: 2 warmup_steps: 1 steps: 4 repetitions: 1\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(2));
  // Steps take groups 01 23 4 01 23, and all but the first are measured.
  std::vector<double> logical;
  for (const json& group : json_lines(dir_ / "rollouts.jsonl")) {
    double rows = 0;
    for (const json& response : group["responses"])
      rows += static_cast<double>(group["prompt_ids"].size() + response["ids"].size());
    logical.push_back(rows);
  }
  const double all = logical[0] + logical[1] + 2 * (logical[2] + logical[3]) + logical[4];
  for (const json& point : found) {
    EXPECT_EQ(point["status"], "ok");
    EXPECT_FALSE(point.contains("prefix_length"));
    EXPECT_NEAR(point["logical_rows"].get<double>(), all / 4, 1e-9);
    EXPECT_EQ(point["sharing"] == "REPEATED", point["rows"] == point["logical_rows"]);
  }
  EXPECT_EQ(table().at(0).count("prefix_length"), 0U);
}

// The same as plan says of the same groups.
//
// Seen red: sharing AUTO predicted for every point.
TEST_F(Study, ForetellsTheStepOfEveryPointOnTheClusterItIsGiven) {
  write_file(dir_ / "rollouts.jsonl", random_rollouts({.groups = 2}));
  write_file(
      dir_ / "slow.textproto",
      "name: \"slow\" origin: MEASURED ranks_per_node: 1\n"
      "device { kind: CPU peak_flops: 2e9 memory_bandwidth: 2e9 memory_bytes: 8e9 threads: 1 }\n"
      "gemm { forward { at_64: 1e9 } }\n"
      "attention { forward { at_64: 8e8 } backward { at_64: 6e8 } }\n"
      "memory { rms_norm: 1e9 rope: 2e9 swiglu: 3e9 rows: 4e9 logits: 5e9 adamw: 6e9 "
      "grad_norm: 7e9 }\n");
  const std::string fields = std::string(kFresh) +
                             "rollouts: \"rollouts.jsonl\"\ngroups_per_step: 2 warmup_steps: 0 "
                             "steps: 1 repetitions: 1\n";
  study(fields + "cluster: \"slow.textproto\"\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(2));
  for (const json& point : found) {
    const auto planned =
        run_program({"plan", "--config", "base.textproto", "--hf-config", "config.json",
                     "--cluster", "slow.textproto", "--json", "--set",
                     "data.rollouts=rollouts.jsonl", "--set", "data.groups_per_step=2", "--set",
                     "batching.sharing=" + point["sharing"].get<std::string>()},
                    dir_.path().string());
    ASSERT_EQ(planned.status, 0) << planned.err;
    EXPECT_EQ(point["predicted_step_seconds"],
              json::parse(planned.out).at("cluster").at("step_seconds"))
        << point["sharing"];
  }
  EXPECT_EQ(table().at(0).at("predicted_step_seconds"),
            fmt::format("{}", found[0]["predicted_step_seconds"].get<double>()));
}

TEST_F(Study, TakesSeveralModelsForAnAxis) {
  auto config = json::parse(read_file(dir_ / "config.json"));
  config["num_hidden_layers"] = 1;
  write_file(dir_ / "small.json", config.dump());
  study(
      "model_config: [\"config.json\", \"small.json\"]\n"
      "sweep { prefix_length: 4 response_length: 2 group_size: 2 sharing: GROUPED }\n"
      "steps: 1 repetitions: 1 memory_budget_bytes: 2000000\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = points();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0]["model"], "config.json");
  EXPECT_EQ(found[1]["model"], "small.json");
  EXPECT_GT(found[0]["peak_memory_bytes"], found[1]["peak_memory_bytes"]);
  EXPECT_EQ(table().at(1).at("model"), "small.json");
  const auto largest = json_lines(dir_ / "out/largest_group.jsonl");
  ASSERT_THAT(largest, SizeIs(2));
  EXPECT_GT(largest[1]["largest_group_size"], largest[0]["largest_group_size"]);
}

// The size that the search finds fits by `coppice plan`, and one more response does not.
TEST_F(Study, FindsTheLargestGroupThatFitsABudget) {
  constexpr std::int64_t kBudget = 5'000'000;
  study(std::string(kFresh) +
        "sweep { prefix_length: [20, 250] response_length: 10 group_size: 2 }\n"
        "steps: 1 repetitions: 1 memory_budget_bytes: 5000000\n");
  const auto outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto planned = [&](const std::string& sharing, std::int64_t group_size) {
    json group = {
        {"group", "g"}, {"prompt_ids", std::vector<int>(20, 1)}, {"responses", json::array()}};
    for (std::int64_t i = 0; i < group_size; ++i)
      group["responses"].push_back({{"ids", std::vector<int>(10, 2)}, {"reward", i}});
    write_file(dir_ / "group.jsonl", group.dump() + "\n");
    const auto plan = run_program(
        {"plan", "--config", "base.textproto", "--json", "--set", "data.rollouts=group.jsonl",
         "--set", "data.groups_per_step=1", "--set", "model.checkpoint=out/work/model_0.h5",
         "--set", "batching.sharing=" + sharing},
        dir_.path().string());
    EXPECT_EQ(plan.status, 0) << plan.err;
    return json::parse(plan.out)["peak_memory_bytes"].get<std::int64_t>();
  };
  const auto found = json_lines(dir_ / "out/largest_group.jsonl");
  ASSERT_THAT(found, SizeIs(4));
  for (const json& line : found) {
    EXPECT_EQ(line["memory_budget_bytes"], kBudget);
    if (line["prefix_length"] == 250) {
      EXPECT_THAT(std::string(line["error"]), HasSubstr("256"));
      continue;
    }
    const auto size = line["largest_group_size"].get<std::int64_t>();
    EXPECT_EQ(planned(line["sharing"], size), line["predicted_memory_bytes"]);
    EXPECT_LE(line["predicted_memory_bytes"], kBudget);
    EXPECT_GT(planned(line["sharing"], size + 1), kBudget);
  }
  EXPECT_GT(found[0]["largest_group_size"], found[1]["largest_group_size"]);
}

}  // namespace
}  // namespace coppice::test
