// Ranks that do not see the same: another command, a directory of their own where one is to be
// shared, a damaged copy of the model. Such a job ends before its first step, with status 2, and
// leaves nothing.
#include "end_to_end/tiny_run.hpp"
#include "launch/host.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class RanksApart : public TinyRun {
 protected:
  RanksApart() {
    std::filesystem::create_directories(other_);
    for (const char* name : {"model.h5", "rollouts.jsonl", "run.textproto"})
      std::filesystem::copy_file(dir_ / name, std::filesystem::path(other_) / name);
  }
  Outcome run_apart(const std::vector<std::string>& first, const std::vector<std::string>& second) {
    return run_command(program_by_rank({{dir_.path().string(), first}, {other_, second}}),
                       dir_.path().string());
  }
  std::string other_ = dir_ / "other";
};

// Seen red: train beside plan ended with status 0 and had trained nothing.
TEST_F(RanksApart, AnotherCommandOnOneRankIsNamed) {
  const std::vector<std::string>
      train = train_arguments({"threads_per_rank=1"}),
      plan = {"plan", "--config", "run.textproto"},
      score = {"score",          "--checkpoint", "model.h5", "--rollouts",
               "rollouts.jsonl", "--out",        "scores"},
      init = {"init",  "--hf-config", golden_case("llama_tied") + "/config.json", "--seed", "1",
              "--out", "new.h5"};
  auto other_seed = init;
  other_seed[4] = "2";
  const auto before = files_below(dir_.path());
  for (const auto& [first, second] : {std::pair{train, plan},
                                      {plan, train},
                                      {score, train},
                                      {train, {"--help"}},
                                      {{"--version"}, train},
                                      {init, other_seed}}) {
    const auto outcome = run_apart(first, second);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.problems(),
                ElementsAre(AllOf(StartsWith("the command line on rank 1 (" + host_name() + ")"),
                                  HasSubstr("Give all ranks the same."))))
        << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_EQ(files_below(dir_.path()), before);
  }
}

// Each rank writes its part of a checkpoint into the run directory: one that is not shared would
// show at the first save, when the steps before it are lost.
TEST_F(RanksApart, ARunDirectoryThatARankDoesNotSeeIsRefusedBeforeTheFirstStep) {
  const auto before = files_below(dir_.path());
  for (const std::string run : {"run", "some/where/run", "some/../where/run/"}) {
    // It waits for half the watchdog: what NFS knows of a directory may be old.
    const auto arguments =
        train_arguments({"threads_per_rank=1", "run_dir=" + run, "limits.watchdog_seconds=12"});
    const auto outcome = run_apart(arguments, arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.problems(),
                ElementsAre(AllOf(StartsWith("run_dir: rank 1 (" + host_name() + ")"),
                                  HasSubstr("in " + run + ": No such file"),
                                  HasSubstr("Give a directory that all ranks share"))))
        << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("step 1")));
    EXPECT_EQ(files_below(dir_.path()), before);
  }
}

TEST_F(RanksApart, ARunDirectoryIsMadeByTheNameThatIsGiven) {
  for (const std::string run : {"some/../way/run/", "./some//run"}) {
    const auto outcome = train_on_ranks(2, {"threads_per_rank=1", "run_dir=" + run});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(std::filesystem::exists(checkpoint(run, 4)));
  }
}

// Seen red: ranks shared the comparing of checksums whatever file each had before it, so that
// damage in the half of the file that another rank looked at was loaded.
TEST_F(RanksApart, DamageToTheCopyOfTheModelThatOneRankReadsIsFound) {
  const std::string model = read_file(dir_ / "model.h5");
  const auto arguments = train_arguments({"threads_per_rank=1"});
  for (const double place : {0.35, 0.6, 0.85}) {
    std::string damaged = model;
    damaged[static_cast<std::size_t>(place * static_cast<double>(model.size()))] ^= 0x10;
    write_file(other_ + "/model.h5", damaged);
    const auto second = run_apart(arguments, arguments);
    EXPECT_EQ(second.status, 2) << second.err;
    EXPECT_THAT(second.problems(),
                Contains(AllOf(HasSubstr("does not have its checksum"),
                               HasSubstr("the file that rank 1 sees is damaged"))))
        << second.err;
    std::filesystem::remove_all(dir_ / "run");
  }
}

}  // namespace
}  // namespace coppice::test
