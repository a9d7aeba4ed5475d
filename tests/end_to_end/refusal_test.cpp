// Input that `train` and `plan` refuse: status 2, every problem in one go with its place, and
// nothing written. Refusals of a config alone are in tests/launch, of rollouts alone in tests/rl.
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.hpp"
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class Refusal : public TinyRun {
 protected:
  // The problems of a train that must be refused and leave every file as it is.
  std::vector<std::string> refused(const std::vector<std::string>& set = {}) {
    const auto before = files_below(dir_.path());
    const auto outcome = train(set);
    EXPECT_EQ(outcome.status, 2) << outcome.out << outcome.err;
    EXPECT_EQ(files_below(dir_.path()), before);
    return outcome.problems();
  }
};

TEST_F(Refusal, OfAConfigListsAllProblemsWithLineAndField) {
  append("run.textproto",
         "loss { clip_lo: 0.1 }\nadvantage { epsilon: small }\nmodel { checkpoint: \"no.h5\" }\n");
  EXPECT_THAT(refused({"parallel.tensor=2", "device=TPU"}),
              testing::UnorderedElementsAre(
                  HasSubstr("run.textproto:8:8: loss.clip_lo: no such field."),
                  HasSubstr("run.textproto:9:13: advantage.epsilon: small is not a number."),
                  HasSubstr("run.textproto:10:9: model.checkpoint: the file \"no.h5\" does not"),
                  HasSubstr("--set parallel.tensor=2: tensor 2 x context 1 = 2 ranks"),
                  HasSubstr("--set device=TPU: TPU is not one of")));
}

TEST_F(Refusal, OfRolloutsListsAllProblemsWithLineGroupAndResponse) {
  write_file(dir_ / "rollouts.jsonl",
             "{\"group\": \"a\", \"prompt_ids\": [1], \"responses\": [{\"ids\": [61], \"reward\": "
             "1}, {\"ids\": [1]}]}\n"
             "{\"group\": \"a\", \"prompt_ids\": [1], \"responses\": []}\n"
             "{\"group\": \"b\", \"prompt_ids\": [1], \"responses\": [{\"ids\": [1], \"reward\": "
             "NaN}]}\n");
  const auto problems = refused();
  EXPECT_THAT(problems, Contains(HasSubstr("rollouts.jsonl:1: group \"a\", response 0: ")));
  EXPECT_THAT(problems, Contains(HasSubstr("rollouts.jsonl:1: group \"a\", response 1: ")));
  EXPECT_THAT(problems, Contains(HasSubstr("rollouts.jsonl:2: group \"a\"")));
  EXPECT_THAT(problems, Contains(HasSubstr("rollouts.jsonl:3: ")));
}

TEST_F(Refusal, OfARolloutsFileWithoutGroups) {
  write_file(dir_ / "rollouts.jsonl", "\n");
  EXPECT_THAT(refused(), ElementsAre(HasSubstr("rollouts.jsonl")));
}

TEST_F(Refusal, OfKlWithoutReferenceLogprobs) {
  EXPECT_THAT(refused({"loss.kl_coef=0.1"}), Contains(HasSubstr("ref_logprobs")));
}

TEST_F(Refusal, OfAGroupThatDoesNotFitNamesItItsSizeAndWhatWouldFit) {
  EXPECT_THAT(refused({"batching.max_rows_per_microbatch=3"}), Contains(HasSubstr("\"g0\"")));
}

TEST_F(Refusal, OfADamagedModel) {
  auto bytes = read_file(dir_ / "model.h5");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  write_file(dir_ / "model.h5", bytes);
  EXPECT_THAT(refused(), Contains(HasSubstr("model.h5")));
  write_file(dir_ / "model.h5", bytes.substr(0, 1000));
  EXPECT_THAT(refused(), Contains(HasSubstr("model.h5")));
  write_file(dir_ / "model.h5", "");
  EXPECT_THAT(refused(), Contains(HasSubstr("model.h5")));
}

TEST_F(Refusal, OfResumeNeverInARunWithCheckpoints) {
  ASSERT_EQ(train({"limits.max_steps=1"}).status, 0);
  EXPECT_THAT(refused({"checkpoint.resume=NEVER"}), ElementsAre(HasSubstr("checkpoint.resume")));
}

TEST_F(Refusal, OfAResumedRunNamesEveryChangedField) {
  ASSERT_EQ(train({"limits.max_steps=1"}).status, 0);
  EXPECT_THAT(refused({"seed=5", "optimizer.beta1=0.8"}),
              ElementsAre(HasSubstr("seed = 1 cannot change to 5"),
                          HasSubstr("optimizer.beta1 = 0.9 cannot change to 0.8")));
}

TEST_F(Refusal, OfAResumedRunWithFewerRollouts) {
  ASSERT_EQ(train({"limits.max_steps=2"}).status, 0);
  const auto lines = lines_of(dir_ / "rollouts.jsonl");
  write_file(dir_ / "rollouts.jsonl", lines[0] + "\n");
  EXPECT_THAT(refused(),
              ElementsAre(HasSubstr("behind group 4 of an epoch, but the rollouts hold 1")));
}

TEST_F(Refusal, QuotesWhatIsNoTextInOneLineOfUtf8) {
  write_file(dir_ / "rollouts.jsonl",
             "{\"group\": \"a\\nb\", \"prompt_ids\": [1], \"responses\": []}\n");
  EXPECT_THAT(refused(), ElementsAre(HasSubstr("group \"a\\nb\": responses is empty")));
  EXPECT_THAT(refused({"seed=\xff"}), ElementsAre(HasSubstr("--set seed=\\xff: ")));
}

// Seen red: a metrics file that is a pipe waited for ever, an over-long name was status 1.
TEST_F(Refusal, OfARunDirectoryThatCannotBeOne) {
  const std::string long_name(300, 'a');
  EXPECT_THAT(refused({"run_dir=" + long_name}), ElementsAre(HasSubstr("File name too long")));
  for (const char* name : {"metrics.jsonl", "config.textproto"}) {
    const std::string run = std::string("run_of_") + name;
    std::filesystem::create_directory(dir_ / run);
    ASSERT_EQ(mkfifo((dir_ / (run + "/" + name)).c_str(), 0600), 0);
    EXPECT_THAT(refused({"run_dir=" + run}), ElementsAre(HasSubstr(run + "/" + name + " is not")));
  }
}

TEST_F(Refusal, OfARunDirectoryThatIsAFile) {
  write_file(dir_ / "taken", "x");
  EXPECT_THAT(refused({"run_dir=taken"}), ElementsAre(HasSubstr("taken")));
  std::filesystem::create_directories(dir_ / "half/metrics.jsonl");
  write_file(dir_ / "half/checkpoints", "x");
  EXPECT_THAT(refused({"run_dir=half"}),
              ElementsAre(HasSubstr("half/checkpoints is not a directory"),
                          HasSubstr("half/metrics.jsonl is not a file")));
}

// Before the work whose result would have no place.
TEST_F(Refusal, OfAPlaceThatCannotBeWritten) {
  namespace fs = std::filesystem;
  fs::create_directories(dir_ / "closed");
  fs::permissions(dir_ / "closed", fs::perms::owner_read | fs::perms::owner_exec);
  const auto problems = [&](const std::vector<std::string>& arguments) {
    Command command = program_on_ranks(0, arguments);
    if (geteuid() == 0)  // whom modes do not hold back while it has its capabilities
      command.words.insert(command.words.begin(),
                           {"setpriv", "--inh-caps=-all", "--bounding-set=-all"});
    const auto outcome = run_command(command, dir_.path().string());
    EXPECT_EQ(outcome.status, 2) << outcome.out << outcome.err;
    return outcome.problems();
  };
  EXPECT_THAT(problems({"score", "--checkpoint", "model.h5", "--rollouts", "rollouts.jsonl",
                        "--out", "closed/scores"}),
              ElementsAre(HasSubstr("the directory closed cannot be written: Permission denied")));
  EXPECT_THAT(problems({"export", "--checkpoint", "model.h5", "--out", "closed/hf"}),
              ElementsAre(HasSubstr("the directory closed cannot be written: Permission denied")));
  EXPECT_THAT(problems(train_arguments({"run_dir=closed/run"})),
              ElementsAre(HasSubstr("closed/run cannot be made: Permission denied")));
  EXPECT_TRUE(fs::is_empty(dir_ / "closed"));
  // Seen red: status 1 for the run directory; the others showed when the first step was done.
  EXPECT_THAT(problems(train_arguments({"run_dir=closed"})),
              ElementsAre(HasSubstr("run_dir: closed cannot be written: Permission denied")));
  EXPECT_TRUE(fs::is_empty(dir_ / "closed"));
  fs::create_directories(dir_ / "open/checkpoints");
  write_file(dir_ / "open/metrics.jsonl", "");
  fs::permissions(dir_ / "open/checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
  fs::permissions(dir_ / "open/metrics.jsonl", fs::perms::owner_read);
  EXPECT_THAT(problems(train_arguments({"run_dir=open"})),
              ElementsAre(HasSubstr("open/checkpoints cannot be written: Permission denied"),
                          HasSubstr("open/metrics.jsonl cannot be written: Permission denied")));
  EXPECT_FALSE(fs::exists(dir_ / "open/config.textproto"));
}

// Whoever opens a pipe waits for its writer. Seen red: every one of these waited for ever; a link
// to itself was status 1 for inspect and import.
TEST_F(Refusal, OfWhatIsNoFileIsAtOnce) {
  namespace fs = std::filesystem;
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("circle", dir_ / "circle");
  for (const std::string name : {"pipe", "circle"}) {
    fs::create_directories(dir_ / ("hf_" + name));
    fs::copy(golden_case("llama_tied") + "/config.json", dir_ / ("hf_" + name));
    fs::create_symlink("../" + name, dir_ / ("hf_" + name + "/model.safetensors"));
    const auto before = dir_.names();
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"inspect", name},
             {"export", "--checkpoint", name, "--out", "out"},
             {"import", "--hf", "hf_" + name, "--out", "out.h5"},
             {"score", "--checkpoint", name, "--rollouts", "rollouts.jsonl", "--out", "out"},
             {"score", "--checkpoint", "model.h5", "--rollouts", name, "--out", "out"},
             train_arguments({"model.checkpoint=" + name}),
             train_arguments({"data.rollouts=" + name}),
             train_arguments({"model.checkpoint=", "model.hf=hf_" + name})}) {
      const auto outcome = coppice(arguments);
      EXPECT_EQ(outcome.status, 2) << testing::PrintToString(arguments) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(name)) << testing::PrintToString(arguments);
      EXPECT_EQ(dir_.names(), before);
    }
  }
}

// What train would refuse is refused by plan too. Seen red: plan looked at the config alone.
TEST_F(Refusal, OfAModelFileThatHoldsAnotherModelThanItTells) {
  auto config = nlohmann::json::parse(read_file(golden_case("llama_tied") + "/config.json"));
  CheckpointHeader header;
  header.model_config_json = config.dump();
  CheckpointWriter(dir_ / "model.h5", header).commit();
  const auto plan = coppice({"plan", "--config", "run.textproto"});
  EXPECT_EQ(plan.status, 2);
  EXPECT_THAT(plan.problems(), Contains(HasSubstr("/parameters/model.norm.weight is missing")));
  EXPECT_EQ(refused(), plan.problems());
}

TEST_F(Refusal, OfPlanIsTheSame) {
  const auto before = files_below(dir_.path());
  const auto outcome =
      coppice({"plan", "--config", "run.textproto", "--set", "loss.kind=PPO", "--set", "seed=x"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.problems(),
              ElementsAre(HasSubstr("--set loss.kind=PPO"), HasSubstr("--set seed=x")));
  EXPECT_EQ(files_below(dir_.path()), before);
}

}  // namespace
}  // namespace coppice::test
