#pragma once
// Runs the built program as a user would, and looks at what it says and leaves behind.
#include <sys/types.h>

#include <string>
#include <vector>

#include "support/temporary_directory.hpp"

namespace coppice::test {

struct Outcome {
  int status = -1;  ///< exit status; 128 + number where a signal ended it
  std::string out, err;

  /// Error lines without what precedes the problem.
  std::vector<std::string> problems() const;
};

/// The program while it runs.
class RunningProgram {
 public:
  /// Starts `coppice arguments...` in `directory`, on so many ranks under mpirun; 0: by itself.
  RunningProgram(const std::vector<std::string>& arguments, const std::string& directory,
                 int ranks = 0);
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void send(int signal) const;
  /// Waits until the file has at least so many lines, or the program has ended.
  void wait_for_lines(const std::string& file, std::size_t lines);
  Outcome wait();

 private:
  bool has_ended();

  TemporaryDirectory output_;
  pid_t pid_ = -1;
  int wait_status_ = -1;
  bool ended_ = false;
};

Outcome run_program(const std::vector<std::string>& arguments, const std::string& directory = ".",
                    int ranks = 0);

/// Names of everything below a directory, relative to it, sorted.
std::vector<std::string> files_below(const std::string& directory);

std::vector<std::string> lines_of(const std::string& path);

}  // namespace coppice::test
