// The program on two hosts, started by launch/run as on any two machines: the result is that of one
// host, and whatever breaks (a rank, the launcher, the cable between them) all ends in bounded
// time, with nothing left behind on either host and the culprit named. The hosts are network
// namespaces; where a machine does not permit these the cases are skipped, and counted as such.
#include <signal.h>

#include <thread>

#include "end_to_end/tiny_run.hpp"
#include "two_hosts/hosts.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const std::string kRun = std::string(COPPICE_SOURCE_DIR) + "/launch/run";
constexpr double kMpirunSeconds = 3;

// Twice what it should take: the machine may be busy.
double bound(double seconds) { return 2 * (seconds + kMpirunSeconds); }

class TwoHosts : public TinyRunOfRanks {
 protected:
  TwoHosts() {
    std::filesystem::create_directory(dir_ / "hosts");
    hosts_ = std::make_unique<Hosts>(
        dir_ / "hosts", std::vector<std::string>{
                            dir_.path(), std::filesystem::path(COPPICE_PROGRAM).parent_path()});
    write_file(dir_ / "hosts.txt", "# two machines\nalder slots=2\nbirch slots=2\n");
  }
  void SetUp() override {
    if (!hosts_->refusal().empty()) GTEST_SKIP() << hosts_->refusal();
  }

  // launch/run OPTIONS -- the built program ARGUMENTS
  static std::vector<std::string> launch(std::vector<std::string> options,
                                         const std::vector<std::string>& arguments,
                                         const std::string& program = COPPICE_PROGRAM) {
    options.insert(options.begin(), kRun);
    options.insert(options.end(), {"--", program});
    options.insert(options.end(), arguments.begin(), arguments.end());
    return options;
  }
  std::vector<std::string> grid(std::vector<std::string> set) const {
    set.insert(set.end(), {"model.checkpoint=ranks.h5", "parallel.tensor=2", "parallel.data=2"});
    return train_arguments(set);
  }
  Outcome on_alder(const std::vector<std::string>& words) const {
    return run_command(hosts_->command("alder", dir_.path(), words));
  }

  // A run without an end on four ranks of both hosts that has done some steps; its processes by
  // rank.
  std::map<int, pid_t> begin(int watchdog, int silent) {
    program_ = std::make_unique<RunningProgram>(
        hosts_->command("alder", dir_.path(),
                        launch({"--hostfile", "hosts.txt", "--threads", "1", "--silent-seconds",
                                std::to_string(silent)},
                               grid({"limits.max_steps=0", "data.epochs=1000000",
                                     "limits.watchdog_seconds=" + std::to_string(watchdog)}))),
        "/");
    const auto ranks = hosts_->wait_for_ranks(4);
    program_->wait_for_lines(dir_ / "run/metrics.jsonl", 3);
    begin_ = std::chrono::steady_clock::now();
    return ranks;
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  // What is said of an end: for the log of the runs.
  void tell(const char* what, const std::string& when, double after) const {
    std::printf("%s: %s after %.1f s\n", what, when.c_str(), after);
  }

  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<RunningProgram> program_;  // ends before its hosts
  std::chrono::steady_clock::time_point begin_;
};

TEST_F(TwoHosts, TrainToTheResultOfOneHost) {
  // A network of the same address on each, of the kind that container engines make; no packet
  // reaches the other host over it. Seen red: no --mca btl_tcp_if_include (the ranks hang).
  for (const char* host : {"alder", "birch"})
    hosts_->run(host,
                "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && "
                "ip link set docker0 up");
  const auto one =
      run_command({launch({"-np", "4", "--threads", "1", "--bind", "none"}, grid({"run_dir=one"}))},
                  dir_.path());
  ASSERT_EQ(one.status, 0) << one.err;
  const auto two =
      on_alder(launch({"--hostfile", "hosts.txt", "--threads", "1"}, grid({"run_dir=two"})));
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr("done: 4 steps"));
  const auto steps_one = metrics("one"), steps_two = metrics("two");
  ASSERT_THAT(steps_two, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(without_times(steps_one.at(i)), without_times(steps_two[i])) << i;
  for (const char* group : {"/parameters/", "/optimizer/exp_avg/", "/optimizer/exp_avg_sq/"})
    EXPECT_EQ(checkpoint_values(checkpoint("one", 4), group),
              checkpoint_values(checkpoint("two", 4), group));
  EXPECT_THAT(hosts_->left_after(2), IsEmpty());
}

// The tree is in nobody's PATH but that of the shell that starts it, and libraries are found by a
// variable of that shell.
TEST_F(TwoHosts, TheOtherHostGetsPathAndVariablesAndDirectory) {
  const std::string bin = std::filesystem::path(COPPICE_PROGRAM).parent_path();
  const auto run = [&](const std::string& program) {
    auto words = launch({"--hostfile", "hosts.txt", "-np", "4"}, {}, program);
    words.insert(words.begin(), {"/usr/bin/env", "PATH=" + bin + ":/usr/bin:/bin",
                                 "LD_LIBRARY_PATH=/opt/ours", "NCCL_DEBUG=WARN", "OMP_DYNAMIC=1"});
    return words;
  };
  auto shell = run("sh");
  shell.insert(shell.end(), {"-c",
                             "echo $(hostname) $PWD $LD_LIBRARY_PATH $NCCL_DEBUG "
                             "$OMP_DYNAMIC $(command -v coppice)"});
  const auto said = on_alder(shell);
  ASSERT_EQ(said.status, 0) << said.err;
  for (const char* host : {"alder ", "birch "})
    EXPECT_THAT(said.out,
                HasSubstr(host + dir_.path().string() + " /opt/ours WARN 1 " + COPPICE_PROGRAM));
  auto version = run("coppice");
  version.emplace_back("--version");
  const auto told = on_alder(version);
  EXPECT_EQ(told.status, 0) << told.err;
}

TEST_F(TwoHosts, WhatIsWrongOnOneHostIsToldWithItsName) {
  // A directory that only alder has.
  hosts_->run("alder", "mkdir /tmp/alone");
  const auto alone = run_command(hosts_->command(
      "alder", "/tmp/alone",
      launch({"--hostfile", dir_ / "hosts.txt", "--silent-seconds", "10"}, {"--version"})));
  EXPECT_NE(alone.status, 0);
  EXPECT_THAT(alone.err, AllOf(HasSubstr("birch"), HasSubstr("/tmp/alone")));
  // A host that nobody knows, and one that does not answer.
  write_file(dir_ / "unknown.txt", "alder slots=2\ncedar slots=2\n");
  const auto unknown = on_alder(launch({"--hostfile", "unknown.txt"}, {"--version"}));
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no address is known for cedar"));
  hosts_->run("birch", "ip link set eth0 down");
  const auto begin = std::chrono::steady_clock::now();
  const auto silent =
      on_alder(launch({"--hostfile", "hosts.txt", "--silent-seconds", "3"}, {"--version"}));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_NE(silent.status, 0);
  EXPECT_THAT(silent.err, HasSubstr("birch"));
  EXPECT_LT(took.count(), bound(3));
  EXPECT_THAT(hosts_->left_after(2), IsEmpty());
}

// No packet passes any more, and nothing tells either side: connections stay open. The ranks'
// watchdog is first here. Seen red: ssh in place of launch/host_link (mpirun and its daemon
// stayed).
TEST_F(TwoHosts, ACutCableEndsAllRanksAndNamesThoseBehindIt) {
  constexpr int kWatchdog = 4, kSilent = 8;
  begin(kWatchdog, kSilent);
  hosts_->run("alder", "ip link set eth0 down");
  const auto ranks_alive = [&] {
    std::map<int, pid_t> alive;
    for (const char* host : {"alder", "birch"})
      for (const auto& process : hosts_->processes(host))
        if (process.rank >= 0) alive[process.rank] = process.pid;
    return alive;
  };
  while (!ranks_alive().empty() && seconds() < 60)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double ranks_ended = seconds();
  const auto outcome = program_->wait();
  const double ended = seconds();
  EXPECT_THAT(hosts_->left_after(10), IsEmpty());
  const double all_gone = seconds();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_LT(ranks_ended, bound(kWatchdog));
  EXPECT_LT(ended, bound(kSilent + 4));
  EXPECT_LT(all_gone, bound(kSilent + 5));
  ASSERT_THAT(outcome.problems(), SizeIs(1)) << outcome.err;
  EXPECT_THAT(outcome.reporting_ranks(), Each(AnyOf(0, 1)));
  EXPECT_THAT(outcome.problems()[0],
              AllOf(HasSubstr(" axis, step "), HasSubstr("has not finished in"),
                    HasSubstr("ranks 2 (birch), 3 (birch) have not entered any collective")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(", alder]: "), HasSubstr("host birch is lost")));
  tell("cable cut, watchdog 4 s, silent 8 s", "the last rank gone", ranks_ended);
  tell("cable cut, watchdog 4 s, silent 8 s", "launch/run ended", ended);
  tell("cable cut, watchdog 4 s, silent 8 s", "nothing left on either host", all_gone);
  std::printf("%s", outcome.err.c_str());
}

// The watchdog is far off: it is the launcher that gives the host up.
TEST_F(TwoHosts, AHostThatFallsSilentIsGivenUpBeforeTheWatchdog) {
  constexpr int kSilent = 4;
  begin(600, kSilent);
  hosts_->run("birch", "ip link set eth0 down");
  const auto outcome = program_->wait();
  const double ended = seconds();
  EXPECT_THAT(hosts_->left_after(10), IsEmpty());
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_LT(ended, bound(kSilent + 4));
  EXPECT_LT(seconds(), bound(kSilent + 5));
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("host birch is lost"), HasSubstr("asked to stop while waiting in "),
                    HasSubstr("ranks 2 (birch), 3 (birch) have not entered any collective"),
                    Not(HasSubstr("unable to reliably start"))));
  tell("cable cut, watchdog 600 s, silent 4 s", "nothing left on either host", seconds());
  std::printf("%s", outcome.err.c_str());
}

TEST_F(TwoHosts, AKilledRankOfTheOtherHostEndsAllAndIsNamed) {
  const auto ranks = begin(60, 30);
  kill(ranks.at(3), SIGKILL);
  const auto outcome = program_->wait();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_THAT(hosts_->left_after(5), IsEmpty());
  EXPECT_LT(seconds(), bound(2));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 3"), HasSubstr("birch"), HasSubstr("signal 9")));
  tell("rank 3 on birch killed", "nothing left on either host", seconds());
}

TEST_F(TwoHosts, OneSignalSavesOnBothHosts) {
  begin(60, 30);
  kill(hosts_->find("alder", kRun), SIGTERM);
  const auto outcome = program_->wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto steps = static_cast<int>(metrics("run").size());
  EXPECT_THAT(outcome.out, HasSubstr("stopped at step " + std::to_string(steps)));
  EXPECT_TRUE(std::filesystem::exists(checkpoint("run", steps)));
  EXPECT_THAT(hosts_->left_after(3), IsEmpty());
}

// Seen red: mpirun started without setpriv (it and all ranks lived on).
TEST_F(TwoHosts, AKilledLauncherLeavesNothingOnEitherHost) {
  for (const std::string& killed : {kRun, std::string("mpirun ")}) {
    std::filesystem::remove_all(dir_ / "run");
    begin(60, 5);
    const pid_t launcher = hosts_->find("alder", killed);
    ASSERT_GT(launcher, 0);
    kill(launcher, SIGKILL);
    EXPECT_THAT(hosts_->left_after(bound(10)), IsEmpty());
    EXPECT_NE(program_->wait().status, 0);
    tell("SIGKILL", killed.substr(killed.rfind('/') + 1) + ": nothing left on either host",
         seconds());
  }
}

}  // namespace
}  // namespace coppice::test
