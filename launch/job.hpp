#pragma once
// The ranks this program runs as: how they begin, agree that they were given the same input, and
// end. A job ends on all ranks or on none: ranks that meet the same problem report it once and end
// in order; a rank that fails alone reports and takes the others with it, since they would wait for
// it for ever. Everything about one rank's work is the commands'.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/stop_signal.hpp"
#include "parallel/mpi/mpi_session.hpp"

namespace coppice {

/// What the first SIGINT, SIGTERM or SIGUSR1 does.
enum class OnSignal {
  kEnd,         ///< ends the process, as the system does it
  kFinishStep,  ///< sets Job::stop_requested()
};

/// How one rank's work has ended.
struct Ending {
  int status = 0;
  std::vector<std::string> problems;  ///< one line each; none where another rank reports
  /// A collective may still be under way, so MPI cannot be ended in order.
  bool within_collective = false;
};

/// Something all ranks must have alike.
struct Fingerprint {
  std::string what;  ///< how a message names it: "the run config run.textproto"
  std::uint64_t hash = 0;
};

/// Another rank has failed and reports it; this one ends quietly.
struct PeerFailed {};

class Job {
 public:
  /// Errors    CommError when MPI cannot be started
  explicit Job(OnSignal on_signal);

  MpiSession& mpi() { return mpi_; }
  int rank() const { return mpi_.rank(); }
  int size() const { return mpi_.size(); }
  int local_size() const { return mpi_.local_size(); }
  /// The one rank that prints what is no error, and writes what is no checkpoint.
  bool is_first() const { return rank() == 0; }
  /// max(1, cores of this host / ranks on it)
  int default_threads() const;
  bool stop_requested() const { return stop_ && stop_->requested(); }
  /// For communicators of this job.
  WatchdogConfig watchdog(double seconds) const;
  /// All ranks, for what they do together before their grid is known. Collective.
  std::unique_ptr<Communicator> world(double watchdog_seconds) {
    return mpi_.split(0, "world", watchdog(watchdog_seconds));
  }

  /// How long a rank that has done its work waits for the others to end. Without it for ever: so do
  /// ranks that have nothing to do in a command of one rank.
  void set_patience(double seconds) { patience_ = seconds; }

  /// Checks that every rank has the same hashes. All ranks call it, once their input is read.
  ///
  /// Errors    DataError on all ranks, naming ranks, hosts and what differs; PeerFailed where
  ///           another rank has failed instead of coming here
  void agree(std::vector<Fingerprint> mine);
  /// What this rank was told to do: the first agree() compares it too.
  void set_command(Fingerprint command) { command_ = std::move(command); }

  /// Ends this rank's part in the job. Returns the exit status of all ranks once all have come
  /// here; else reports this rank's problems and ends the job.
  int end(Ending ending);

 private:
  void report(const std::vector<std::string>& problems) const;
  [[noreturn]] void end_all(const Ending& ending);

  // First: MPI's start takes a while, and a signal within it would end a run that should save.
  std::optional<StopSignal> stop_;
  MpiSession mpi_;
  std::optional<double> patience_;
  std::optional<Fingerprint> command_;
};

}  // namespace coppice
