#pragma once
// Runs the built program as a user would, and looks at what it says and leaves behind.
#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "support/temporary_directory.hpp"

namespace coppice::test {

struct Outcome {
  int status = -1;  ///< exit status; 128 + number where a signal ended it
  std::string out, err;
  double seconds = 0;  ///< from the start to the end

  /// Error lines without what precedes the problem.
  std::vector<std::string> problems() const;
  /// The ranks that reported them.
  std::vector<int> reporting_ranks() const;
};

/// A program and its arguments.
struct Command {
  std::vector<std::string> words;
};

/// `coppice arguments...`, on so many ranks under mpirun; 0: by itself.
Command program_on_ranks(int ranks, const std::vector<std::string>& arguments);

/// What one rank of a job runs: `before... coppice arguments...` in a directory.
struct RankCommand {
  std::string directory;
  std::vector<std::string> arguments;
  std::vector<std::string> before = {};
};
/// mpirun with a command for each rank.
Command program_by_rank(const std::vector<RankCommand>& ranks);

/// A program while it runs.
class RunningProgram {
 public:
  RunningProgram(Command command, const std::string& directory);
  /// Starts `coppice arguments...` in `directory`, on so many ranks under mpirun; 0: by itself.
  RunningProgram(const std::vector<std::string>& arguments, const std::string& directory,
                 int ranks = 0)
      : RunningProgram(program_on_ranks(ranks, arguments), directory) {}
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  /// Processes of the ranks by rank, where mpirun runs them; waits until there are `ranks`.
  std::map<int, pid_t> rank_processes(int ranks);
  /// Waits until the file has at least so many lines, or the program has ended.
  void wait_for_lines(const std::string& file, std::size_t lines);
  Outcome wait();

 private:
  bool has_ended();

  TemporaryDirectory output_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  pid_t pid_ = -1;
  int wait_status_ = -1;
  double seconds_ = 0;
  bool ended_ = false;
};

/// False once the process has ended, reaped or not (its parent may be gone, and init slow); waits
/// for that a little: mpirun may end a moment before what it has killed.
bool stays_alive(pid_t pid);

/// The same to the end.
Outcome run_program(const std::vector<std::string>& arguments, const std::string& directory = ".",
                    int ranks = 0);
Outcome run_command(Command command, const std::string& directory = ".");

/// Names of everything below a directory, relative to it, sorted.
std::vector<std::string> files_below(const std::string& directory);

std::vector<std::string> lines_of(const std::string& path);

}  // namespace coppice::test
