#include "two_hosts/hosts.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace coppice::test {
namespace {

const std::string kScript = std::string(COPPICE_SOURCE_DIR) + "/tests/two_hosts/make_hosts";
constexpr int kNotPermitted = 77;

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// The words of /proc/PID/cmdline or environ.
std::vector<std::string> words_of(const std::filesystem::path& file) {
  std::vector<std::string> words;
  std::ifstream in(file);
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

std::string pid_namespace(const std::filesystem::path& process) {
  std::error_code gone;
  return std::filesystem::read_symlink(process / "ns/pid", gone).string();
}

}  // namespace

Hosts::Hosts(const std::string& directory, const std::vector<std::string>& shared)
    : directory_(directory) {
  std::array<int, 2> to{}, from{};
  if (pipe2(to.data(), O_CLOEXEC) != 0 || pipe2(from.data(), O_CLOEXEC) != 0)
    throw std::runtime_error("no pipe");
  std::vector<std::string> words = {kScript, directory};
  words.insert(words.end(), shared.begin(), shared.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string log = directory + "/make_hosts.log";
  script_ = fork();
  if (script_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    dup2(open(log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  input_ = to[1];
  std::string line;
  for (char c = 0; read(from[0], &c, 1) == 1 && c != '\n';) line += c;
  close(from[0]);
  std::istringstream answer(line);
  std::string ready;
  if (answer >> ready >> first_process_["alder"] >> first_process_["birch"]) return;
  int status = 0;
  waitpid(script_, &status, 0);
  script_ = -1;
  const std::string said = read_file(log);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != kNotPermitted)
    throw std::runtime_error("two hosts cannot be made: " + said);
  refusal_ = said;
}

Hosts::~Hosts() {
  close(input_);
  if (script_ > 0) waitpid(script_, nullptr, 0);
}

Command Hosts::command(const std::string& host, const std::string& directory,
                       const std::vector<std::string>& words) const {
  Command all{{"/usr/bin/env", "--unset=TMPDIR", "nsenter", "--target",
               std::to_string(first_process_.at(host)), "--net", "--uts", "--ipc", "--mount",
               "--pid", "--", "/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", directory}};
  all.words.insert(all.words.end(), words.begin(), words.end());
  return all;
}

void Hosts::run(const std::string& host, const std::string& words) const {
  const auto outcome = run_command(command(host, "/", {"/bin/sh", "-c", words}));
  if (outcome.status != 0) throw std::runtime_error(words + " on " + host + ": " + outcome.err);
}

std::vector<HostProcess> Hosts::processes(const std::string& host) const {
  std::vector<HostProcess> found;
  const auto its_namespace = pid_namespace("/proc/" + std::to_string(first_process_.at(host)));
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::istringstream number(entry.path().filename().string());
    HostProcess process{};
    if (!(number >> process.pid) || pid_namespace(entry.path()) != its_namespace) continue;
    for (const auto& word : words_of(entry.path() / "cmdline"))
      process.command += (process.command.empty() ? "" : " ") + word;
    // The host's own: its first process with a sleep, and sshd, which waits for a lost peer on its
    // own account. A process without a command has ended.
    if (process.command.empty() || process.command.find("make_hosts --host") != std::string::npos ||
        process.command == "sleep 3600" || process.command.rfind("sshd: ", 0) == 0)
      continue;
    process.rank = -1;
    for (const auto& variable : words_of(entry.path() / "environ"))
      if (const std::string name = "OMPI_COMM_WORLD_RANK="; variable.rfind(name, 0) == 0)
        process.rank = std::stoi(variable.substr(name.size()));
    found.push_back(process);
  }
  return found;
}

std::map<int, pid_t> Hosts::wait_for_ranks(int ranks) const {
  std::map<int, pid_t> found;
  const auto begin = std::chrono::steady_clock::now();
  while (std::ssize(found) < ranks) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60))
      throw std::runtime_error("the ranks do not start");
    nap();
    for (const auto& [host, first] : first_process_)
      for (const auto& process : processes(host))
        if (process.rank >= 0) found[process.rank] = process.pid;
  }
  return found;
}

pid_t Hosts::find(const std::string& host, const std::string& text) const {
  for (const auto& process : processes(host))
    if (process.command.find(text) != std::string::npos) return process.pid;
  return -1;
}

std::vector<std::string> Hosts::left_after(double seconds) const {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    std::vector<std::string> left;
    for (const auto& [host, first] : first_process_)
      for (const auto& process : processes(host)) left.push_back(host + ": " + process.command);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (left.empty() || took.count() > seconds) return left;
    nap();
  }
}

}  // namespace coppice::test
