#pragma once
// A bound for the few MPI calls that cannot be polled: starting MPI, making communicators, ending.
// If a peer never comes, they would block for ever, and with them the whole job. Private to
// parallel/mpi.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace coppice {

/// Ends the process with status 1 (and mpirun then the job) unless destroyed within `seconds`.
///
/// Effects   before that, `tell` gets one line, on a thread of its own
class Deadline {
 public:
  /// `work` as a message names it: "the start of MPI".
  Deadline(std::string work, double seconds, std::function<void(const std::string&)> tell);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable change_;
  bool is_met_ = false;
  std::thread thread_;
};

}  // namespace coppice
