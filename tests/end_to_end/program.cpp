#include "end_to_end/program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace coppice::test {

std::vector<std::string> Outcome::problems() const {
  std::vector<std::string> found;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    const std::string begin = "coppice: error [rank 0, ";
    const auto end = line.find("]: ");
    if (line.rfind(begin, 0) == 0 && end != line.npos) found.push_back(line.substr(end + 3));
  }
  return found;
}

RunningProgram::RunningProgram(const std::vector<std::string>& arguments,
                               const std::string& directory, int ranks) {
  std::vector<std::string> words = {COPPICE_PROGRAM};
  if (ranks > 0)
    words = {COPPICE_MPIEXEC, "--allow-run-as-root", "--oversubscribe",
             "-np",           std::to_string(ranks), COPPICE_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = output_ / "out", err = output_ / "err";
  pid_ = fork();
  if (pid_ == 0) {
    const int flags = O_CREAT | O_WRONLY | O_TRUNC;
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), flags, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), flags, 0600), STDERR_FILENO);
    if (chdir(directory.c_str()) == 0) execv(argv[0], argv.data());
    _exit(127);
  }
}

RunningProgram::~RunningProgram() {
  if (!has_ended()) {
    send(SIGKILL);
    wait();
  }
}

void RunningProgram::send(int signal) const { kill(pid_, signal); }

bool RunningProgram::has_ended() {
  if (!ended_) ended_ = waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  return ended_;
}

void RunningProgram::wait_for_lines(const std::string& file, std::size_t lines) {
  while (!has_ended() && lines_of(file).size() < lines)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

Outcome RunningProgram::wait() {
  if (!ended_) waitpid(pid_, &wait_status_, 0);
  ended_ = true;
  Outcome outcome;
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
