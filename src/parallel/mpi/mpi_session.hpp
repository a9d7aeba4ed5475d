#pragma once
// MPI for the length of the program: started once, ended once, and never ended while an error is on
// its way out, because a rank that waits in MPI_Finalize for peers that wait for it hangs them all.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/activity.hpp"
#include "parallel/communicator.hpp"

namespace coppice {

class LongWait;

/// How long a rank waits in a collective before it gives its peers up.
struct WatchdogConfig {
  double seconds = 600.0;
  /// Whether this process was asked to stop. mpirun asks so when a peer has died, a moment before
  /// it kills the rest: what a rank waits for then is worth a line.
  std::function<bool()> stop_requested = {};
  /// Takes that line.
  std::function<void(const std::string&)> notice = {};
};

/// Parallel  one per process; every rank makes it first and destroys it last. A program that was
///           started without mpirun is a job of one rank, and uses no MPI
/// Errors    CommError when MPI cannot be started
class MpiSession {
 public:
  /// `start`: how long the start may take, and who takes the line when it takes longer. A rank that
  /// does not come then ends the process; there is no way back from a call into MPI.
  explicit MpiSession(WatchdogConfig start = {});
  /// Ends MPI with all ranks together; during unwinding it aborts the job instead.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Whether this MPI runs collectives under compute; else those that are started block.
  bool can_overlap() const;
  int rank() const;
  int size() const;
  /// Place among the ranks of this host, and their number.
  int local_rank() const;
  int local_size() const;
  /// Processors that the ranks of this host may use, all of them together.
  int local_cores() const;
  /// Name of this host, for messages.
  const std::string& host() const;

  /// Tells all ranks that this one reports an error and will abort the job, so that one report is
  /// enough. False, and nothing told, where another rank has told so before.
  bool claim_report();
  /// Ends every rank of the job with `status`, now.
  [[noreturn]] void abort(int status);

  /// The ranks that pass the same `color`, in world order. Collective over all ranks.
  ///
  /// `axis` names the communicator in messages ("tensor", "context", "data").
  std::unique_ptr<Communicator> split(int color, std::string axis, WatchdogConfig watchdog);

  /// What every rank passes, by rank. Nothing where a rank has not come within `seconds`; then only
  /// abort() is left. Without `seconds` it waits for ever. Collective over all ranks; for words
  /// before and after the work, not within it: waiting ranks sleep between looks.
  std::optional<std::vector<std::string>> gather(std::string_view word,
                                                 std::optional<double> seconds);
  /// One sentence about where the other ranks are, after a gather() in vain.
  std::string whereabouts() const;

  /// Called between looks while this rank waits in MPI, until removed; may throw. For what a device
  /// needs of its host meanwhile.
  void add_wait_hook(const void* owner, std::function<void()> hook);
  void remove_wait_hook(const void* owner);
  /// A wait that is not MPI's, in which others are told and heard all the same. Not without MPI.
  std::unique_ptr<LongWait> begin_wait(std::string_view collective, std::string_view axis,
                                       const Activity& activity, const WatchdogConfig& watchdog,
                                       std::chrono::steady_clock::time_point start);

  /// What this rank is doing; whoever drives the work writes it, messages about waits read it.
  Activity& activity();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coppice
