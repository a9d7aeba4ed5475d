#pragma once
// Two machines played by this one (make_hosts tells how), as tests see them: commands that run on
// one of them, and the processes that live there.
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "end_to_end/program.hpp"

namespace coppice::test {

struct HostProcess {
  pid_t pid;  ///< as this machine counts
  std::string command;
  int rank = -1;  ///< of Open MPI; -1: not a rank
};

/// alder and birch. All that runs on them ends with this object.
class Hosts {
 public:
  /// Keys and logs go to `directory`, which both hosts see, as they see the `shared` paths.
  Hosts(const std::string& directory, const std::vector<std::string>& shared);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// Why this machine does not permit it; empty where it does.
  const std::string& refusal() const { return refusal_; }

  /// The words as a command on that host, in `directory` there.
  Command command(const std::string& host, const std::string& directory,
                  const std::vector<std::string>& words) const;
  /// Runs it to its end; a failure is an error.
  void run(const std::string& host, const std::string& words) const;
  /// What lives there beyond what the host itself needs.
  std::vector<HostProcess> processes(const std::string& host) const;
  /// The processes of so many ranks of a job on both hosts, once they have started.
  std::map<int, pid_t> wait_for_ranks(int ranks) const;
  /// The process there whose command holds the text; -1 if there is none.
  pid_t find(const std::string& host, const std::string& text) const;
  /// Waits until nothing of a job lives on either host, `seconds` at most; what is left.
  std::vector<std::string> left_after(double seconds) const;

 private:
  std::map<std::string, pid_t> first_process_;
  std::string directory_, refusal_;
  pid_t script_ = -1;
  int input_ = -1;
};

}  // namespace coppice::test
