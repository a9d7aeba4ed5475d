#include "end_to_end/program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

namespace coppice::test {

namespace {

struct ErrorLine {
  int rank;
  std::string problem;
};

std::vector<ErrorLine> error_lines(const std::string& text) {
  std::vector<ErrorLine> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string begin = "coppice: error [rank ";
    const auto end = line.find("]: ");
    if (line.rfind(begin, 0) == 0 && end != line.npos)
      found.push_back({std::stoi(line.substr(begin.size())), line.substr(end + 3)});
  }
  return found;
}

std::map<pid_t, pid_t> parents_of_processes() {
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::istringstream number(entry.path().filename().string());
    pid_t pid = 0, parent = 0;
    if (!(number >> pid)) continue;
    // "PID (name) state parent ..."; a name may hold anything
    std::ifstream stat(entry.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(stat)), {});
    std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string state;
    if (rest >> state >> parent) parents[pid] = parent;
  }
  return parents;
}

const std::vector<std::string> kMpirun = {COPPICE_MPIEXEC, "--allow-run-as-root",
                                          "--oversubscribe"};

}  // namespace

std::vector<std::string> Outcome::problems() const {
  std::vector<std::string> found;
  for (const auto& line : error_lines(err)) found.push_back(line.problem);
  return found;
}

std::vector<int> Outcome::reporting_ranks() const {
  std::vector<int> found;
  for (const auto& line : error_lines(err)) found.push_back(line.rank);
  return found;
}

Command program_on_ranks(int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  if (ranks > 0) {
    words = kMpirun;
    words.insert(words.end(), {"-np", std::to_string(ranks)});
  }
  words.emplace_back(COPPICE_PROGRAM);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return {words};
}

Command program_by_rank(const std::vector<RankCommand>& ranks) {
  std::vector<std::string> words = kMpirun;
  for (const auto& rank : ranks) {
    if (&rank != &ranks.front()) words.emplace_back(":");
    words.insert(words.end(), {"-np", "1", "-wdir", rank.directory});
    words.insert(words.end(), rank.before.begin(), rank.before.end());
    words.emplace_back(COPPICE_PROGRAM);
    words.insert(words.end(), rank.arguments.begin(), rank.arguments.end());
  }
  return {words};
}

RunningProgram::RunningProgram(Command command, const std::string& directory) {
  std::vector<char*> argv;
  for (auto& word : command.words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = output_ / "out", err = output_ / "err";
  pid_ = fork();
  if (pid_ == 0) {
    const int flags = O_CREAT | O_WRONLY | O_TRUNC;
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), flags, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), flags, 0600), STDERR_FILENO);
    if (chdir(directory.c_str()) == 0) execvp(argv[0], argv.data());
    _exit(127);
  }
}

RunningProgram::~RunningProgram() {
  if (!has_ended()) {
    send(SIGKILL);
    wait();
  }
}

bool stays_alive(pid_t pid) {
  for (int i = 0; i < 250; ++i) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    const std::string text((std::istreambuf_iterator<char>(stat)), {});
    if (text.empty() || text.substr(text.rfind(')') + 2, 1) == "Z") return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

void RunningProgram::send(int signal) const { kill(pid_, signal); }

bool RunningProgram::has_ended() {
  if (ended_ || waitpid(pid_, &wait_status_, WNOHANG) != pid_) return ended_;
  ended_ = true;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return true;
}

std::map<int, pid_t> RunningProgram::rank_processes(int ranks) {
  std::map<int, pid_t> found;
  while (!has_ended() && std::ssize(found) < ranks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto parents = parents_of_processes();
    for (const auto& [pid, parent] : parents) {
      pid_t ancestor = parent;
      while (ancestor != pid_ && parents.count(ancestor) != 0) ancestor = parents.at(ancestor);
      if (ancestor != pid_) continue;
      std::ifstream variables("/proc/" + std::to_string(pid) + "/environ");
      for (std::string variable; std::getline(variables, variable, '\0');)
        if (const std::string name = "OMPI_COMM_WORLD_RANK="; variable.rfind(name, 0) == 0)
          found[std::stoi(variable.substr(name.size()))] = pid;
    }
  }
  return found;
}

void RunningProgram::wait_for_lines(const std::string& file, std::size_t lines) {
  // No more of the file than that: on a busy machine it may grow faster than it is read.
  const auto has_them = [&] {
    std::ifstream in(file);
    std::size_t found = 0;
    for (std::string line; found < lines && std::getline(in, line);) ++found;
    return found == lines;
  };
  while (!has_ended() && !has_them())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

Outcome RunningProgram::wait() {
  while (!has_ended()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  Outcome outcome;
  outcome.seconds = seconds_;
  outcome.status =
      WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : 128 + WTERMSIG(wait_status_);
  outcome.out = read_file(output_ / "out");
  outcome.err = read_file(output_ / "err");
  return outcome;
}

Outcome run_program(const std::vector<std::string>& arguments, const std::string& directory,
                    int ranks) {
  return RunningProgram(arguments, directory, ranks).wait();
}

Outcome run_command(Command command, const std::string& directory) {
  return RunningProgram(std::move(command), directory).wait();
}

std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    names.push_back(std::filesystem::relative(entry.path(), directory).string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (!file.eof()) lines.push_back(line);  // a line is one that has its end
  return lines;
}

}  // namespace coppice::test
