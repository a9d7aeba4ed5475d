#pragma once
// Who is waiting for whom. A rank that has waited long in a collective tells all others so, and
// hears from them; the ranks that stay silent are the ones that hang. Private to parallel/mpi.
#include <mpi.h>

#include <array>
#include <string>
#include <vector>

#include "parallel/activity.hpp"

namespace coppice {

/// One rank's word that it waits.
struct WaitNotice {
  std::array<char, 32> axis;        // "tensor"
  std::array<char, 32> collective;  // "all_gather"
  std::array<char, 32> phase;       // Activity::phase
  std::int64_t step;
  std::int32_t layer;
};

/// Parallel  over all ranks of the job, on a communicator of its own; never blocks
class Heartbeat {
 public:
  /// Collective over all ranks.
  explicit Heartbeat(MPI_Comm world);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Forgets what was heard; called when a wait begins to be long.
  void announce(const WaitNotice& notice);
  /// Takes in what others announced.
  void listen();
  /// One sentence about every rank: which have not entered a collective, and where the rest wait.
  std::string report() const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<WaitNotice> heard_;  // by rank; step -1: silent
  std::vector<WaitNotice> sent_;   // one per announcement: MPI reads it until it is delivered
  std::vector<MPI_Request> requests_;
};

}  // namespace coppice
