#include "launch/child_process.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>

#include "launch/host.hpp"
#include "launch/one_line.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

bool is_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const auto colon = std::min(rest.find(':'), rest.size());
    const fs::path file = fs::path(rest.substr(0, colon)) / name;
    if (access(file.c_str(), X_OK) == 0) return true;
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return false;
}

// The environment this process was started with. MPI, once it has begun, adds to the present one
// what a child would take for the description of its own job; the same holds for what an mpirun
// around this process has set.
std::vector<std::string> environment_for_children() {
  constexpr std::array<std::string_view, 13> kOfAJob = {"PMIX_",
                                                        "PRTE_",
                                                        "PMI_",
                                                        "OMPI_COMM_",
                                                        "OMPI_UNIVERSE_",
                                                        "OMPI_NUM_APP",
                                                        "OMPI_APP_CTX",
                                                        "OMPI_FIRST_",
                                                        "OMPI_FILE_",
                                                        "OMPI_MCA_orte_",
                                                        "OMPI_MCA_ess",
                                                        "OMPI_MCA_pmix_",
                                                        "OMPI_MCA_initial_"};
  std::vector<std::string> variables;
  std::ifstream file("/proc/self/environ", std::ios::binary);
  for (std::string variable; std::getline(file, variable, '\0');)
    if (std::none_of(kOfAJob.begin(), kOfAJob.end(),
                     [&](std::string_view name) { return variable.starts_with(name); }))
      variables.push_back(variable);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// mpirun and srun end their ranks when asked to; a rank by itself has nothing to put in order.
bool ends_others(const std::vector<std::string>& words) {
  return words[0] == "mpirun" || words[0] == "srun";
}

// Between fork and exec: nothing but calls that a signal handler may make.
[[noreturn]] void become(char* const* words, char* const* environment, int log, pid_t parent,
                         int death_signal) {
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(127);
  setsid();
  if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0)
    if (write(score, "1000", 4) < 0) close(score);  // a wish, no more
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_DFL);
  execvpe(words[0], words, environment);
  _exit(127);
}

// True once it has ended; `status` is then what waitpid() tells.
bool ended_within(pid_t child, double seconds, int& status) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    if (waitpid(child, &status, WNOHANG) == child) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Clock::now() < end);
  return false;
}

}  // namespace

Launcher::Launcher() : slurm_(std::getenv("SLURM_JOB_ID") != nullptr) {
  std::error_code error;
  program_ = fs::read_symlink("/proc/self/exe", error).string();
  if (error) throw IoError(fmt::format("/proc/self/exe cannot be read: {}.", error.message()));
}

void Launcher::check(int most_ranks, Problems& problems) const {
  if (slurm_ && !is_in_path("srun"))
    problems.add(
        "SLURM_JOB_ID is set, but there is no srun in PATH (every point is a job step). Add its "
        "directory to PATH, or unset SLURM_JOB_ID.");
  if (!slurm_ && most_ranks > 1 && !is_in_path("mpirun"))
    problems.add(
        "there is no mpirun in PATH (a grid of {} ranks needs it). Install it with launch/setup, "
        "or "
        "study grids of one rank.",
        most_ranks);
}

std::vector<std::string> Launcher::words(int ranks,
                                         const std::vector<std::string>& arguments) const {
  std::vector<std::string> words;
  if (slurm_) {
    words = {"srun", fmt::format("--ntasks={}", ranks), "--kill-on-bad-exit=1"};
    if (const char* cpus = std::getenv("SLURM_CPUS_PER_TASK"))
      words.push_back(fmt::format("--cpus-per-task={}", cpus));
    if (std::getenv("SLURM_STEP_ID") != nullptr) words.emplace_back("--overlap");
  } else if (ranks > 1) {
    words = {"mpirun", "--use-hwthread-cpus", "--bind-to", "none"};
    if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
    if (ranks > available_cores()) words.emplace_back("--oversubscribe");
    words.insert(words.end(), {"-np", std::to_string(ranks)});
  }
  words.push_back(program_);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

ChildEnd run_child(const std::vector<std::string>& words, const fs::path& log,
                   const std::function<bool()>& stop_requested) {
  constexpr double kBetweenLooks = 0.05, kToEndInOrder = 10;
  std::vector<std::string> own_words = words, environment = environment_for_children();
  const std::vector<char*> argv = pointers_to(own_words), envp = pointers_to(environment);
  const int file = open(log.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0)
    throw IoError(fmt::format("{} cannot be written: {}.", log.string(), std::strerror(errno)));
  const bool in_order = ends_others(words);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become(argv.data(), envp.data(), file, parent, in_order ? SIGTERM : SIGKILL);
  const int error = errno;
  close(file);
  if (child < 0)
    throw IoError(fmt::format("{} cannot be started: {}.", words[0], std::strerror(error)));
  ChildEnd end;
  int status = 0;
  while (!ended_within(child, kBetweenLooks, status)) {
    if (!stop_requested()) continue;
    end.stopped = true;
    if (in_order) {
      kill(child, SIGTERM);
      if (ended_within(child, kToEndInOrder, status)) break;
    }
    kill(-child, SIGKILL);  // the session's processes
    kill(child, SIGKILL);   // if it has not come to have one
    waitpid(child, &status, 0);
    break;
  }
  end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return end;
}

std::string error_in_log(const fs::path& log) {
  constexpr std::size_t kMostLines = 5, kMostBytes = 1000;
  std::vector<std::string> problems;
  std::string last;
  std::ifstream file(log, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    last = line;
    const auto end = line.find("]: ");
    if (line.starts_with("coppice: error [") && end != line.npos)
      problems.push_back(line.substr(end + 3));
  }
  if (problems.empty() && !last.empty()) problems.push_back(last);
  const std::size_t all = problems.size();
  if (all > kMostLines) problems.resize(kMostLines);
  std::string text = fmt::format("{}", fmt::join(problems, " "));
  if (all > kMostLines) text += fmt::format(" ({} more)", all - kMostLines);
  if (text.size() > kMostBytes) text = text.substr(0, kMostBytes) + "...";
  return one_line(text);
}

}  // namespace coppice
