// The run config: what is refused and how it is said, how values combine, and the resolved text.
// Expected messages and values are written by hand from the interface.
#include "launch/run_config.hpp"

#include <gmock/gmock.h>

#include "core/rng.hpp"
#include "support/allocation_watch.hpp"
#include "support/damaged_file.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class RunConfigFile : public testing::Test {
 protected:
  RunConfigFile() {
    write_file(dir_ / "model.h5", "");
    write_file(dir_ / "r.jsonl", "");
  }
  // A complete config and what is added to it.
  std::string good(const std::string& more = "") {
    return "run_dir: \"runs/x\"\nmodel { checkpoint: \"" + (dir_ / "model.h5").string() +
           "\" }\ndata { rollouts: \"" + (dir_ / "r.jsonl").string() + "\" groups_per_step: 8 }\n" +
           more;
  }
  RunConfig load(const std::string& text, const std::vector<std::string>& set = {}) {
    write_file(dir_ / "run.textproto", text);
    return load_run_config(dir_ / "run.textproto", set, use_, job_);
  }
  // Problems with the directory's name taken off.
  std::vector<std::string> problems(const std::string& text,
                                    const std::vector<std::string>& set = {}) {
    try {
      load(text, set);
    } catch (const ConfigError& error) {
      auto lines = error.problems();
      const std::string prefix = dir_.path().string() + "/";
      for (auto& line : lines)
        for (auto at = line.find(prefix); at != line.npos; at = line.find(prefix))
          line.erase(at, prefix.size());
      return lines;
    }
    return {};
  }
  TemporaryDirectory dir_;
  RunConfigUse use_ = RunConfigUse::kTrain;
  JobSize job_;
};

TEST_F(RunConfigFile, ResolvesEveryDefaultAndReadsBackAsItself) {
  const auto config = load(good());
  for (const char* line : {"seed: 1\n",
                           "epochs: 1\n",
                           "shuffle: true\n",
                           "sharing: AUTO\n",
                           "max_rows_per_microbatch: 16384\n",
                           "kind: GRPO\n",
                           "clip_low: 0.2\n",
                           "clip_high: 0.2\n",
                           "dual_clip: 0\n",
                           "kl_estimator: K3\n",
                           "aggregation: SEQUENCE_MEAN_TOKEN_MEAN\n",
                           "normalization: STD\n",
                           "epsilon: 1e-06\n",
                           "learning_rate: 1e-06\n",
                           "beta2: 0.95\n",
                           "schedule: CONSTANT\n",
                           "zero: OPTIMIZER\n",
                           "precision: F32\n",
                           "recompute: NONE\n",
                           "device: CPU\n",
                           "keep_last: 2\n",
                           "resume: AUTO\n",
                           "max_bad_steps: 10\n",
                           "tensor: 1\n"})
    EXPECT_THAT(config.text(), HasSubstr(line));
  EXPECT_EQ(load(config.text()).text(), config.text());
}

TEST_F(RunConfigFile, KindSetsDefaultsAndNothingElse) {
  EXPECT_THAT(load(good("loss { kind: DAPO }")).text(),
              AllOf(HasSubstr("clip_high: 0.28"), HasSubstr("aggregation: TOKEN_MEAN"),
                    HasSubstr("normalization: STD")));
  EXPECT_THAT(
      load(good("loss { kind: DAPO clip_high: 0.5 aggregation: SEQUENCE_MEAN_TOKEN_MEAN }")).text(),
      AllOf(HasSubstr("clip_high: 0.5"), HasSubstr("SEQUENCE_MEAN_TOKEN_MEAN")));
  EXPECT_THAT(load(good("loss { kind: DR_GRPO max_response_length: 64 }")).text(),
              AllOf(HasSubstr("normalization: NONE"), HasSubstr("SEQUENCE_MEAN_TOKEN_SUM_NORM")));
  const auto sft = load(good("loss { kind: SFT }")).text();
  EXPECT_THAT(sft, AllOf(HasSubstr("aggregation: TOKEN_MEAN"), Not(HasSubstr("clip_low"))));
  EXPECT_EQ(load(sft).text(), sft);
}

TEST_F(RunConfigFile, MergesBlocksAndTheLastValueWins) {
  const auto text = load(good("optimizer { beta1: 0.5 beta2: 0.6 }\nseed: 2\n"
                              "optimizer { beta2: 0.7 beta2: 0.8 }\nseed: 3\n"),
                         {"seed=4", "optimizer.epsilon=1e-3", "seed=5"})
                        .text();
  EXPECT_THAT(text, AllOf(HasSubstr("beta1: 0.5"), HasSubstr("beta2: 0.8"), HasSubstr("seed: 5"),
                          HasSubstr("epsilon: 0.001")));
}

// Text format writes a block in braces or in angle brackets, each with its own end.
TEST_F(RunConfigFile, TakesBlocksInAngleBrackets) {
  const auto text = load(good("optimizer < beta1: 0.5 >\nloss: < kind: DAPO, clip_low: 0.1; >\n"
                              "optimizer { beta2: 0.7 }\n"))
                        .text();
  EXPECT_THAT(text, AllOf(HasSubstr("beta1: 0.5"), HasSubstr("beta2: 0.7"), HasSubstr("kind: DAPO"),
                          HasSubstr("clip_low: 0.1")));
  EXPECT_THAT(problems(good("optimizer < beta1: 0.5 }\n")),
              ElementsAre(HasSubstr("a field's name should stand here, not }."),
                          HasSubstr("optimizer: the brace opened here is never closed. Add a >.")));
}

TEST_F(RunConfigFile, SetTakesEnumsAndStringsWithAndWithoutQuotes) {
  EXPECT_EQ(load(good(), {"run_dir=runs/y", "loss.kind=SFT"}).trainer.run_dir, "runs/y");
  EXPECT_EQ(load(good(), {"run_dir=\"runs/z\""}).trainer.run_dir, "runs/z");
  EXPECT_EQ(load(good(), {"run_dir=a=b"}).trainer.run_dir, "a=b");
  for (const char* kind : {"SFT", "\"SFT\"", "'SFT'"})
    EXPECT_THAT(load(good(), {std::string("loss.kind=") + kind}).text(), HasSubstr("kind: SFT"));
  EXPECT_THAT(problems(good(), {"run_dir=\"open", "loss.kind='SFT", "loss.kind=\"\""}),
              ElementsAre(HasSubstr("--set run_dir=\"open: "), HasSubstr("--set loss.kind='SFT: "),
                          HasSubstr("--set loss.kind=\"\": ")));
}

TEST_F(RunConfigFile, NamesSyntaxFaultsAndGoesOn) {
  EXPECT_THAT(problems(good("loss { clip_low: }\n"
                            "seed 7\n"
                            "= 3\n"
                            "colour: \"red\" shape { side: 1 }\n"
                            "}\n"
                            "optimizer { beta1: 2\n")),
              ElementsAre("run.textproto:4:8: loss.clip_low: its value is missing.",
                          HasSubstr("run.textproto:5:1: seed: a colon and a value"),
                          HasSubstr("run.textproto:6:1: a field's name should stand here, not =."),
                          HasSubstr("run.textproto:7:1: colour: no such field. Fields of a run"),
                          HasSubstr("run.textproto:7:15: shape: no such field."),
                          "run.textproto:8:1: this } closes nothing. Remove it.",
                          HasSubstr("run.textproto:9:1: optimizer: the brace opened here is never"),
                          HasSubstr("run.textproto:9:13: optimizer.beta1: 2 is not in [0, 1)")));
}

TEST_F(RunConfigFile, NamesValuesOfTheWrongType) {
  EXPECT_THAT(
      problems(good("seed: -1\ndevice: GPU\nrun_dir: 3\nloss: 4\nbatching { sharing: 1\n"
                    "max_rows_per_microbatch: 1.5 }\ndata { shuffle: maybe epochs { } }\n"
                    "limits { max_steps: 99999999999999999999 }\nadvantage { epsilon: [1] }")),
      ElementsAre(HasSubstr(":4:1: seed: -1 is not a whole number, 0 or more."),
                  HasSubstr(":5:1: device: GPU is not one of AUTO, CPU, CUDA."),
                  HasSubstr(":6:1: run_dir: 3 is not text in quotes."),
                  HasSubstr(":7:1: loss: is a block. Write loss { ... }"),
                  HasSubstr(":8:12: batching.sharing: 1 is not one of AUTO, GROUPED, REPEATED."),
                  HasSubstr(":9:1: batching.max_rows_per_microbatch: 1.5 is not a whole number."),
                  HasSubstr(":10:8: data.shuffle: maybe is not true or false."),
                  HasSubstr(":10:23: data.epochs: takes a whole number, not a block."),
                  HasSubstr(":11:10: limits.max_steps: 99999999999999999999 is not a whole"),
                  HasSubstr(":12:13: advantage.epsilon: [1] is not a number.")));
}

// Seen red: the path ended at its zero byte, and the run went there.
TEST_F(RunConfigFile, RefusesPathsThatNoFileCanHave) {
  EXPECT_THAT(problems(good("run_dir: \"a\\000b\" data { rollouts: \"/\\000\" }\n"
                            "model { checkpoint: \"\" hf: \"\\x00\" }")),
              ElementsAre(HasSubstr("run.textproto:4:1: run_dir: holds a zero byte"),
                          HasSubstr(":5:24: model.hf: holds a zero byte"),
                          HasSubstr(":4:26: data.rollouts: holds a zero byte")));
}

// As of rollouts and config.json.
TEST_F(RunConfigFile, TakesAByteOrderMark) {
  EXPECT_EQ(load("\xEF\xBB\xBF" + good()).trainer.run_dir, "runs/x");
}

TEST_F(RunConfigFile, NamesWhatIsMissing) {
  EXPECT_THAT(problems("loss { kind: DR_GRPO }"),
              ElementsAre(HasSubstr("run.textproto: run_dir: missing."),
                          HasSubstr("run.textproto: model.checkpoint: missing."),
                          HasSubstr("run.textproto: data.rollouts: missing."),
                          HasSubstr("run.textproto: data.groups_per_step: missing."),
                          HasSubstr("run.textproto: loss.max_response_length: missing")));
  EXPECT_THAT(problems(good("model { checkpoint: \"none.h5\" }\ndata { rollouts: \"/\" }")),
              ElementsAre(HasSubstr(":4:9: model.checkpoint: the file \"none.h5\" does not exist"),
                          HasSubstr(":5:8: data.rollouts: \"/\" is not a file.")));
}

TEST_F(RunConfigFile, RefusesEveryValueOutOfRangeAtOnce) {
  const std::vector<std::string> bad = {"data.groups_per_step=0",
                                        "data.epochs=0",
                                        "batching.max_rows_per_microbatch=0",
                                        "loss.clip_low=-0.1",
                                        "loss.clip_high=nan",
                                        "loss.dual_clip=1",
                                        "loss.kl_coef=-1",
                                        "loss.entropy_coef=inf",
                                        "loss.temperature=0",
                                        "loss.updates_per_batch=0",
                                        "loss.max_response_length=0",
                                        "advantage.epsilon=-1",
                                        "optimizer.learning_rate=-1e-6",
                                        "optimizer.beta1=1",
                                        "optimizer.beta2=-0.1",
                                        "optimizer.epsilon=nan",
                                        "optimizer.weight_decay=-1",
                                        "optimizer.max_grad_norm=-1",
                                        "optimizer.warmup_steps=-1",
                                        "optimizer.total_steps=0",
                                        "parallel.tensor=0",
                                        "parallel.context=-1",
                                        "parallel.data=-1",
                                        "threads_per_rank=0",
                                        "checkpoint.every_steps=-1",
                                        "checkpoint.keep_last=0",
                                        "limits.max_steps=-1",
                                        "limits.max_bad_steps=0",
                                        "limits.watchdog_seconds=0",
                                        "limits.parameter_check_steps=-1"};
  const auto lines = problems(good("loss { aggregation: SEQUENCE_MEAN_TOKEN_SUM_NORM }"), bad);
  EXPECT_THAT(lines, SizeIs(bad.size()));
  for (const auto& assignment : bad)
    EXPECT_THAT(lines, Contains(HasSubstr("--set " + assignment + ": ")));
}

TEST_F(RunConfigFile, RefusesWhatDoesNotGoTogether) {
  EXPECT_THAT(problems(good("loss { kind: SFT clip_low: 0.1 }\nadvantage { normalization: STD }\n"
                            "loss { max_response_length: 5 }\n"
                            "optimizer { schedule: COSINE warmup_steps: 5 total_steps: 5 }")),
              ElementsAre(HasSubstr("loss.clip_low: does not go with kind: SFT"),
                          HasSubstr("loss.max_response_length: goes with aggregation"),
                          HasSubstr("advantage.normalization: does not go with loss.kind: SFT"),
                          HasSubstr("optimizer.total_steps: 5 leaves no step behind")));
}

TEST_F(RunConfigFile, StagesTensorsOfDevicesOnly) {
  EXPECT_THAT(problems(good("parallel { communicator: STAGED }\ndevice: CPU\n")),
              ElementsAre(HasSubstr(":4:12: parallel.communicator: STAGED is how ranks on CUDA")));
  EXPECT_EQ(load(good("device: CPU")).device, DeviceKind::kCpu);
}

TEST_F(RunConfigFile, RefusesWhatComesLater) {
  EXPECT_THAT(problems(good("model { reference: \"m.h5\" }\n"
                            "numerics { precision: BF16 }\ndevice: CUDA\n")),
              ElementsAre(HasSubstr("numerics.precision: BF16 runs on CUDA devices only"),
                          HasSubstr("device: CUDA is not in this build"),
                          HasSubstr("model.reference: reference models come later.")));
}

TEST_F(RunConfigFile, TakesOneModelFileOrOneDirectory) {
  std::filesystem::create_directory(dir_ / "hf");
  const std::string hf = (dir_ / "hf").string();
  EXPECT_EQ(load(good(), {"model.checkpoint=\"\"", "model.hf=\"" + hf + "\""}).model_hf, hf);
  EXPECT_EQ(load(good()).model_hf, "");
  EXPECT_THAT(problems(good(), {"model.hf=\"" + hf + "\""}),
              ElementsAre(HasSubstr("but model.checkpoint is")));
  EXPECT_THAT(problems(good(), {"model.checkpoint=\"\""}),
              ElementsAre(HasSubstr("model.checkpoint=\"\": empty")));
  EXPECT_THAT(problems(good(), {"model.checkpoint=\"\"", "model.hf=\"" + hf + "x\""}),
              ElementsAre(HasSubstr("hfx\" does not exist")));
  EXPECT_THAT(problems(good(), {"model.checkpoint=\"" + hf + "\""}),
              ElementsAre(HasSubstr("or a Hugging Face directory in model.hf")));
  EXPECT_THAT(problems(good(), {"model.checkpoint=\"\"",
                                "model.hf=\"" + (dir_ / "r.jsonl").string() + "\""}),
              ElementsAre(HasSubstr("is not a directory")));
}

TEST_F(RunConfigFile, TakesGridsThatFillTheRanksAndGivesDataWhatIsLeft) {
  job_ = {.ranks = 12, .default_threads = 3};
  const auto config = load(good("parallel { tensor: 2 context: 3 }"));
  EXPECT_EQ(config.grid.tensor, 2);
  EXPECT_EQ(config.grid.context, 3);
  EXPECT_EQ(config.grid.data, 2);
  EXPECT_EQ(config.sequence_parallel, SequenceParallel::kYes);
  EXPECT_EQ(config.threads_per_rank, 3);
  EXPECT_EQ(config.watchdog_seconds, 600);
  EXPECT_THAT(config.text(), AllOf(HasSubstr("data: 2"), HasSubstr("sequence_parallel: true")));
  EXPECT_EQ(load(good("parallel { data: 12 }")).sequence_parallel, SequenceParallel::kNo);
  EXPECT_EQ(load(good("parallel { tensor: 12 sequence_parallel: false }")).sequence_parallel,
            SequenceParallel::kNo);
  EXPECT_EQ(load(good("limits { watchdog_seconds: 7 }")).watchdog_seconds, 7);
}

TEST_F(RunConfigFile, RefusesGridsThatTheRanksDoNotFillAndSaysWhatWouldWork) {
  job_.ranks = 8;
  EXPECT_THAT(problems(good("parallel { tensor: 3 }")),
              ElementsAre("run.textproto:4:12: parallel.tensor: tensor 3 x context 1 = 3 ranks or "
                          "a multiple of them are asked for, but 8 ranks run (each place of the "
                          "grid is one rank). Start 3 ranks or a multiple, or choose tensor x "
                          "context = 1, 2, 4 or 8."));
  EXPECT_THAT(problems(good("parallel { tensor: 2 }"), {"parallel.context=3", "seed=x"}),
              ElementsAre(HasSubstr("seed=x"),
                          HasSubstr("--set parallel.context=3: tensor 2 x context 3 = 6 ranks")));
  EXPECT_THAT(
      problems(good("parallel { tensor: 2 context: 2 data: 3 }")),
      ElementsAre(AllOf(HasSubstr(":4:33: parallel.data: tensor 2 x context 2 x data 3 = 12 "
                                  "ranks are asked for, but 8 ranks run"),
                        HasSubstr("Start 12 ranks, or set parallel.data to 2 (0 takes"))));
  EXPECT_THAT(problems(good("parallel { tensor: 5 data: 3 }")),
              ElementsAre(HasSubstr("Start 15 ranks, or choose tensor x context = 1, 2, 4 or 8 and "
                                    "data: 0, which takes what is left.")));
  job_.ranks = 1;
  EXPECT_THAT(problems(good("parallel { tensor: 2 }")),
              ElementsAre(AllOf(HasSubstr("but 1 rank runs"), HasSubstr("tensor x context = 1."))));
  EXPECT_THAT(problems(good(), {"parallel.tensor=9223372036854775807"}),
              ElementsAre(HasSubstr("is more ranks than any job has")));
}

TEST_F(RunConfigFile, PlanTakesTheProductOfTheGridAsTheRanks) {
  use_ = RunConfigUse::kPlan;
  const auto config = load(good("parallel { tensor: 3 context: 5 }"));
  EXPECT_EQ(config.grid.ranks(), 15);
  EXPECT_EQ(config.grid.data, 1);
  EXPECT_EQ(load(good("parallel { tensor: 2 context: 2 data: 7 }")).grid.ranks(), 28);
  EXPECT_EQ(load(good("parallel { tensor: 1000 }")).threads_per_rank, 1);
  EXPECT_THAT(problems(good("parallel { tensor: 999999 context: 999999 data: 999999 }")),
              ElementsAre(HasSubstr("are more than any job has")));
}

TEST_F(RunConfigFile, CommonTextIsTheSameOnRanksWithOtherThreadCounts) {
  job_.default_threads = 2;
  const auto one = load(good());
  job_.default_threads = 7;
  const auto other = load(good());
  EXPECT_NE(one.text(), other.text());
  EXPECT_EQ(one.common_text(), other.common_text());
  EXPECT_NE(one.common_text(), load(good("seed: 9")).common_text());
}

TEST_F(RunConfigFile, NamesAFaultySet) {
  EXPECT_THAT(problems(good(), {"seed", "=1", "parallel.tensor=x", "parallel.size=1", "loss=GRPO",
                                "seed.x=1", "run_dir=", "loss.kind=PPO", "data.epochs="}),
              ElementsAre("--set seed: should read path.to.field=value.",
                          "--set =1: should read path.to.field=value.",
                          "--set parallel.tensor=x: x is not a whole number.",
                          HasSubstr("--set parallel.size=1: no such field. Fields of parallel:"),
                          HasSubstr("--set loss=GRPO: loss is a block."),
                          "--set seed.x=1: seed is not a block.",
                          HasSubstr("--set loss.kind=PPO: PPO is not one of GRPO, DR_GRPO"),
                          "--set data.epochs=: nothing is not a whole number.",
                          HasSubstr("--set run_dir=: empty.")));
}

// Whatever stands in the file, it is read or refused: no crash, no other error.
TEST_F(RunConfigFile, DamagedAnywhereIsReadOrRefused) {
  const std::string whole = load(good("loss { kind: DAPO } limits { max_steps: 3 }")).text();
  const std::string pieces = "{}[]<>:;,\"'#\\\n.-+0e9\xff";
  const RandomStream random(1, "damage");
  std::uint64_t drawn = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (int edit = 0; edit <= i % 4; ++edit) {
      const auto at = random.below(text.size(), drawn++);
      if (random.below(3, drawn++) == 0)
        text.erase(at, 1 + random.below(40, drawn++));
      else
        text.insert(at, 1, pieces[random.below(pieces.size(), drawn++)]);
    }
    problems(text);
  }
  EXPECT_THAT(problems(std::string(100000, '{')), SizeIs(testing::Ge(1u)));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "loss {";
  EXPECT_THAT(problems(deep), Contains(HasSubstr("nested too deeply")));
}

// Cut at every 4 KiB and at every byte of its fields, and single bits flipped: refused with the
// file's name, or taken with a resolved text that reads back as itself.
// Seen red: places of problems that do not name the file.
TEST_F(RunConfigFile, CutsAndFlippedBitsAreReadOrRefusedInBoundedMemory) {
  const std::string fields = load(good("loss { kind: DAPO } limits { max_steps: 3 }")).text();
  const std::string remark = "# a remark that says nothing of use to anybody who reads it\n";
  std::string text;
  while (text.size() < 3 * 4096) text += remark;
  text += fields;
  const auto path = dir_ / "run.textproto";
  write_file(path, text);
  const DamagedFile file(path);
  const auto taken = [&] {
    forget_allocations();
    std::string resolved;
    try {
      resolved = load_run_config(path, {}, use_, job_).text();
    } catch (const ConfigError& error) {
      for (const auto& line : error.problems())
        EXPECT_THAT(line, testing::AnyOf(HasSubstr("run.textproto"), HasSubstr("model.h5"),
                                         HasSubstr("r.jsonl")));
    }
    EXPECT_LE(largest_allocation(), 8 * text.size() + (64 << 10));
    return resolved;
  };
  const std::string whole = taken();
  ASSERT_FALSE(whole.empty());
  file.for_each_cut([&](std::size_t length) {
    EXPECT_EQ(taken(), length == text.size() - 1 ? whole : "") << length;  // a line's end
  });
  std::vector<std::string> others;
  int refused = 0;
  for (const std::uint64_t seed : {1, 2}) {
    const RandomStream random(seed, "flips of fields");
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const auto bit = 8 * (text.size() - fields.size()) + random.below(8 * fields.size(), i);
      file.with_flip(bit, [&] {
        const std::string resolved = taken();
        refused += resolved.empty() ? 1 : 0;
        if (!resolved.empty() && resolved != whole) others.push_back(resolved);
      });
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(others.size(), 20u) << "a digit that becomes another";
  for (const auto& other : others) EXPECT_EQ(load(other).text(), other);
}

TEST_F(RunConfigFile, ThatDoesNotExistIsNamed) {
  EXPECT_THROW(load_run_config(dir_ / "no.textproto", {}, RunConfigUse::kTrain), ConfigError);
  EXPECT_THROW(load_run_config(dir_.path(), {}, RunConfigUse::kTrain), ConfigError);
}

TEST_F(RunConfigFile, LetsARunGoOnWithOtherLimitsButNotWithAnotherLoss) {
  const auto before = load(good()).text();
  EXPECT_THAT(changes_that_forbid_resume(
                  before,
                  load(good("limits { max_steps: 9 } checkpoint { every_steps: 2 } "
                            "threads_per_rank: 1 batching { sharing: REPEATED } "
                            "numerics { recompute: BLOCK } device: CPU run_dir: \"moved\""))
                      .text(),
                  "step_1.h5"),
              IsEmpty());
  EXPECT_THAT(changes_that_forbid_resume(
                  before,
                  load(good("seed: 7 loss { clip_low: 0.3 } numerics { precision: F64 } "
                            "optimizer { total_steps: 4 }"))
                      .text(),
                  "step_1.h5"),
              ElementsAre(HasSubstr("step_1.h5: seed = 1 cannot change to 7"),
                          HasSubstr("loss.clip_low = 0.2 cannot change to 0.3"),
                          HasSubstr("optimizer.total_steps = not set cannot change to 4"),
                          HasSubstr("numerics.precision = F32 cannot change to F64")));
}

TEST(ScoreConfig, TakesGridNumericsAndBatchingOnly) {
  EXPECT_EQ(make_score_config({"", "f64", "auto"}, {}).precision, DType::kF64);
  EXPECT_THAT(make_score_config({"", "", "auto"}, {}).text(), HasSubstr("sharing: GROUPED"));
  EXPECT_THAT(make_score_config({"repeated", "", "cpu"}, {}).text(),
              HasSubstr("sharing: REPEATED"));
  try {
    make_score_config({"grouped", "bf16", "cuda"},
                      {"batching.sharing=REPEATED", "loss.kind=SFT", "parallel.tensor=2",
                       "batching.max_rows_per_microbatch=0"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.problems(),
        ElementsAre(
            HasSubstr("--set loss.kind=SFT: coppice score takes threads_per_rank and fields of"),
            HasSubstr("--sharing grouped and --set batching.sharing=REPEATED say"),
            HasSubstr("--set parallel.tensor=2: tensor 2 x context 1 = 2 ranks"),
            HasSubstr("--precision bf16: BF16 runs on CUDA"),
            HasSubstr("--device cuda: CUDA is not in this build"),
            HasSubstr("--set batching.max_rows_per_microbatch=0: 0 is too small")));
  }
}

}  // namespace
}  // namespace coppice::test
