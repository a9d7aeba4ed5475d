#pragma once
// Programs that a command of ours starts and waits for: one at a time, by itself or on ranks of its
// own, ended when this process is told to stop and never outliving it, however it dies.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace coppice {

/// How a child's ranks are started, found out once.
class Launcher {
 public:
  /// Under Slurm every child is a job step of its own, by srun; elsewhere one of several ranks runs
  /// under mpirun on this machine, and one of a single rank by itself.
  Launcher();

  /// Adds a problem where children of so many ranks cannot be started here.
  void check(int most_ranks, Problems& problems) const;

  /// `coppice arguments...`, this very program, on so many ranks.
  std::vector<std::string> words(int ranks, const std::vector<std::string>& arguments) const;

  /// All ranks run on this machine.
  bool is_local() const { return !slurm_; }

 private:
  bool slurm_;
  std::string program_;
};

struct ChildEnd {
  bool stopped = false;  ///< ended because `stop_requested`; nothing else counts then
  int status = 0;        ///< exit status; 128 + number where a signal ended it
};

/// Runs a program to its end. It has no input; what it prints goes to the file `log`. In a session
/// of its own, so that a Ctrl-C in the terminal reaches this process only. The kernel ends it when
/// this process dies, and takes it first when memory runs out.
///
/// Effects   asks `stop_requested` some times a second
/// Errors    IoError where it cannot be started
ChildEnd run_child(const std::vector<std::string>& words, const std::filesystem::path& log,
                   const std::function<bool()>& stop_requested);

/// What went wrong, from what a child of this program has printed: its error lines without what
/// precedes the problem, or its last line; "" where it printed nothing.
std::string error_in_log(const std::filesystem::path& log);

}  // namespace coppice
