// The scripts that start the program on several ranks: the options they add, the status they give,
// and that one signal to them is a request that mpirun does not cut short.
#include <signal.h>

#include <thread>

#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

const std::string kRun = std::string(COPPICE_SOURCE_DIR) + "/launch/run";

class LaunchRun : public TinyRun {
 protected:
  // launch/run OPTIONS -- the built program ARGUMENTS
  Command command(std::vector<std::string> options, const std::vector<std::string>& arguments) {
    options.insert(options.begin(), kRun);
    options.insert(options.end(), {"--", COPPICE_PROGRAM});
    options.insert(options.end(), arguments.begin(), arguments.end());
    return {options};
  }
  Outcome run(const std::vector<std::string>& options, const std::vector<std::string>& arguments) {
    return run_command(command(options, arguments), dir_.path().string());
  }
  std::vector<std::string> endless() const {
    return train_arguments({"limits.max_steps=0", "data.epochs=1000000"});
  }
};

TEST_F(LaunchRun, RunsOnRanksWithTheThreadsItIsGiven) {
  const auto outcome = run({"-np", "2", "--threads", "1", "--bind", "none"}, train_arguments({}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done: 4 steps"));
  EXPECT_THAT(read_file(dir_ / "run/config.textproto"),
              AllOf(HasSubstr("threads_per_rank: 1"), HasSubstr("data: 2")));
}

TEST_F(LaunchRun, GivesTheStatusOfTheProgram) {
  const auto refused = run({"-np", "2"}, train_arguments({"seed=x"}));
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_THAT(refused.problems(), SizeIs(1));
  EXPECT_EQ(run({}, {"--version"}).status, 0);
}

TEST_F(LaunchRun, RefusesWhatItDoesNotKnow) {
  for (const auto& options : std::vector<std::vector<std::string>>{
           {"-np", "0"}, {"-np", "two"}, {"--threads", "-1"}, {"--bind", "socket"}, {"--colour"}}) {
    const auto outcome = run(options, {"--version"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("launch/run: "));
  }
  EXPECT_EQ(run_command({{kRun}}).status, 2);
  EXPECT_THAT(run_command({{kRun, "--help"}}).out, HasSubstr("usage: launch/run"));
}

// Root's option goes to root, and more ranks than cores are said to be wanted; nothing else.
TEST_F(LaunchRun, AddsOptionsOnlyWhereTheyAreNeeded) {
  const auto words = [&](const std::vector<std::string>& options) {
    return run(options, {"train", "--config", "x"}).out;
  };
  const auto few = words({"--dry-run", "-np", "1", "--threads", "1"});
  EXPECT_THAT(few, AllOf(Not(HasSubstr("--oversubscribe")), HasSubstr("--map-by slot:PE=1"),
                         HasSubstr(" -np 1 "), HasSubstr("--set threads_per_rank=1")));
  EXPECT_EQ(few.find("--allow-run-as-root") != few.npos, getuid() == 0);
  const auto many = words({"--dry-run", "-np", "1000"});
  EXPECT_THAT(many, AllOf(HasSubstr("--oversubscribe"), HasSubstr("--bind-to none"),
                          Not(HasSubstr("threads_per_rank"))));
  EXPECT_THAT(words({"--dry-run", "-np", "1000", "--mpirun", "--hostfile", "--mpirun", "hosts"}),
              AllOf(Not(HasSubstr("--oversubscribe")), HasSubstr(" --hostfile hosts -np 1000 ")));
}

// A rank is held back for 3 s after the signal; mpirun kills 1 s after a SIGTERM of its own. Seen
// red: the script passing SIGTERM on to mpirun.
TEST_F(LaunchRun, OneSignalIsARequestToSaveHoweverLongThatTakes) {
  for (const int signal : {SIGTERM, SIGINT}) {
    std::filesystem::remove_all(dir_ / "run");
    RunningProgram program(command({"-np", "2", "--threads", "1"}, endless()),
                           dir_.path().string());
    const auto ranks = program.rank_processes(2);
    ASSERT_THAT(ranks, SizeIs(2));
    program.wait_for_lines(dir_ / "run/metrics.jsonl", 2);
    kill(ranks.at(1), SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    program.send(signal);
    std::this_thread::sleep_for(std::chrono::seconds(5));  // 2 of them are the script's own
    kill(ranks.at(1), SIGCONT);
    const auto outcome = program.wait();
    EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const auto steps = static_cast<int>(metrics("run").size());
    EXPECT_THAT(outcome.out, HasSubstr("stopped at step " + std::to_string(steps)));
    EXPECT_TRUE(std::filesystem::exists(checkpoint("run", steps)));
  }
}

TEST_F(LaunchRun, ASecondSignalEndsTheRanksAtOnce) {
  RunningProgram program(command({"-np", "2", "--threads", "1"}, endless()), dir_.path().string());
  const auto ranks = program.rank_processes(2);
  ASSERT_THAT(ranks, SizeIs(2));
  program.wait_for_lines(dir_ / "run/metrics.jsonl", 2);
  kill(ranks.at(1), SIGSTOP);  // it will not finish its step
  program.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  program.send(SIGTERM);
  const auto outcome = program.wait();
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 30);
}

// Seen red: mpirun started without setpriv (it and its ranks lived on).
TEST_F(LaunchRun, KilledItTakesItsRanksAlong) {
  RunningProgram program(command({"-np", "2", "--threads", "1"}, endless()), dir_.path().string());
  const auto ranks = program.rank_processes(2);
  ASSERT_THAT(ranks, SizeIs(2));
  program.wait_for_lines(dir_ / "run/metrics.jsonl", 2);
  program.send(SIGKILL);
  for (const auto& [rank, pid] : ranks) {
    EXPECT_FALSE(stays_alive(pid)) << rank;
    kill(pid, SIGKILL);  // one that lives on would hold this test's pipe open
  }
  EXPECT_EQ(program.wait().status, 128 + SIGKILL);
}

TEST_F(LaunchRun, RefusesAHostfileThatItDoesNotUnderstand) {
  const auto problem = [&](const std::string& hosts, std::vector<std::string> options) {
    write_file(dir_ / "hosts.txt", hosts);
    options.insert(options.begin(), {"--dry-run", "--hostfile", "hosts.txt"});
    const auto outcome = run(options, {"--version"});
    return std::to_string(outcome.status) + " " + outcome.err + outcome.out;
  };
  EXPECT_THAT(problem("localhost\n", {}), HasSubstr("2 launch/run: hosts.txt: \"localhost \""));
  EXPECT_THAT(problem("localhost slots=0\n", {}), HasSubstr("2 launch/run: "));
  EXPECT_THAT(problem("# nobody\n\n", {}), HasSubstr("2 launch/run: hosts.txt names no host"));
  EXPECT_THAT(problem("localhost slots=2\n", {"-np", "3"}), HasSubstr("more than the 2 slots"));
  EXPECT_THAT(problem("localhost slots=2", {}), AllOf(HasSubstr("0 mpirun "), HasSubstr("-np 2 ")));
  EXPECT_EQ(run({"--hostfile", "absent.txt"}, {"--version"}).status, 2);
}

// Four GPUs, two on each of two NUMA nodes of six cores, of which the machine grants core 1 to 9.
TEST_F(LaunchRun, PutsARankOnItsShareOfTheCoresNextToItsGpu) {
  const std::string tree = COPPICE_SOURCE_DIR;
  const std::filesystem::path root = dir_ / "machine";
  const auto gpu = [&](const std::string& bus, const std::string& cores) {
    std::filesystem::create_directories(root / "proc/driver/nvidia/gpus" / bus);
    std::filesystem::create_directories(root / "sys/bus/pci/devices" / bus);
    write_file(root / "sys/bus/pci/devices" / bus / "local_cpulist", cores + "\n");
  };
  gpu("0000:1b:00.0", "0-2,6-8");
  gpu("0000:43:00.0", "0-2,6-8");
  gpu("0000:52:00.0", "3-5,9-11");
  gpu("0000:9d:00.0", "3-5,9-11");
  std::filesystem::create_directories(root / "proc/self");
  write_file(root / "proc/self/status", "Name:\tx\nCpus_allowed_list:\t1-9\n");
  // taskset that only says what it is told
  write_file(dir_ / "taskset", "#!/bin/sh\necho $2 $CUDA_DEVICE_ORDER\n");
  std::filesystem::permissions(dir_ / "taskset", std::filesystem::perms::owner_all);
  const auto cores = [&](const std::string& rank, const std::string& size,
                         const std::string& visible = "") {
    std::vector<std::string> words = {
        "/usr/bin/env", "PATH=" + dir_.path().string() + ":/usr/bin:/bin",
        "OMPI_COMM_WORLD_LOCAL_RANK=" + rank, "OMPI_COMM_WORLD_LOCAL_SIZE=" + size};
    if (!visible.empty()) words.push_back("CUDA_VISIBLE_DEVICES=" + visible);
    words.insert(words.end(),
                 {tree + "/launch/near_gpu", "--system", root.string(), "echo", "unbound"});
    const auto outcome = run_command({words});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  // Node 0 grants 1 2 6 7 8, node 1 grants 3 4 5 9.
  EXPECT_EQ(cores("0", "4"), "1,2 PCI_BUS_ID\n");
  EXPECT_EQ(cores("1", "4"), "6,7 PCI_BUS_ID\n");
  EXPECT_EQ(cores("2", "4"), "3,4 PCI_BUS_ID\n");
  EXPECT_EQ(cores("3", "4"), "5,9 PCI_BUS_ID\n");
  EXPECT_EQ(cores("0", "1"), "1,2,6,7,8 PCI_BUS_ID\n");
  EXPECT_EQ(cores("0", "2", "3,0"), "3,4,5,9 PCI_BUS_ID\n");
  EXPECT_EQ(cores("4", "5"), "unbound\n") << "more ranks than GPUs: the program's to refuse";
  EXPECT_EQ(cores("0", "1", "GPU-8932f937"), "unbound\n");
}

// Without Slurm: what the job script does in an allocation of two tasks of one core.
TEST_F(LaunchRun, TheSlurmScriptRunsItWithWhatTheAllocationHas) {
  const std::string tree = COPPICE_SOURCE_DIR;
  const auto script = [&](std::vector<std::string> arguments) {
    arguments.insert(
        arguments.begin(),
        {"/usr/bin/env", "SLURM_NTASKS=2", "SLURM_CPUS_PER_TASK=1", "COPPICE_BIND=none",
         "SLURM_SUBMIT_DIR=" + dir_.path().string(), tree + "/launch/coppice.sbatch"});
    return run_command({arguments}, dir_.path().string());
  };
  EXPECT_EQ(script({"train", "--config", "run.textproto"}).status, 2) << "not in the tree's root";
  std::filesystem::create_directories(dir_ / "launch");
  std::filesystem::create_symlink(kRun, dir_ / "launch/run");
  EXPECT_EQ(script({}).status, 2);
  const std::string path = std::filesystem::path(COPPICE_PROGRAM).parent_path().string();
  ASSERT_EQ(setenv("PATH", (path + ":" + std::getenv("PATH")).c_str(), 1), 0);
  const auto outcome = script({"train", "--config", "run.textproto"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done: 4 steps"));
}

}  // namespace
}  // namespace coppice::test
