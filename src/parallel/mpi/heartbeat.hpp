#pragma once
// Who is waiting for whom. A rank that has waited long in a collective tells all others so, and
// hears from them; the ranks that stay silent are the ones that hang. Private to parallel/mpi.
#include <mpi.h>

#include <array>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/activity.hpp"

namespace coppice {

/// One rank's word about itself.
struct WaitNotice {
  enum State : std::int32_t {
    kSilent,  // it computes, hangs or is gone
    kWaits,   // in the collective told here
    kFails,   // it reports an error and ends the job
  };
  State state;
  std::int32_t layer;
  std::int64_t step;
  std::array<char, 32> axis;        // "tensor"
  std::array<char, 32> collective;  // "all_gather"
  std::array<char, 32> phase;       // Activity::phase
};

/// Of this moment; silent until it is announced as another state.
WaitNotice notice_of(std::string_view collective, std::string_view axis, const Activity& activity);

/// "all_reduce over the tensor axis, step 3, backward, layer 2"
std::string place_of(const WaitNotice& notice);

/// Parallel  over all ranks of the job, on a communicator of its own; never blocks
class Heartbeat {
 public:
  /// Collective over all ranks.
  explicit Heartbeat(MPI_Comm world);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Tells all others. The last word of a rank is what counts.
  void announce(const WaitNotice& notice);
  /// Takes in what others announced.
  void listen();
  /// One sentence about every rank: which have not entered a collective, and where the rest wait.
  std::string report() const;
  bool another_waits() const;
  /// Another rank reports an error, so that nothing more need be said.
  bool another_fails() const;
  /// No rank before this one is known to wait too: of several that would say the same, one does.
  bool is_first_to_wait() const;

  /// What goes on while the host waits in MPI, by who wants it: a device's communication.
  std::map<const void*, std::function<void()>> hooks;
  void host_waits() const {
    for (const auto& [owner, hook] : hooks) hook();
  }
  /// Whether this rank has told yet that it was asked to stop while it waited.
  bool stop_is_told = false;

 private:
  struct Sent {
    WaitNotice notice;  // MPI reads it until it is delivered
    std::vector<MPI_Request> requests;
  };
  std::string name_of_rank(int rank) const;
  void forget_delivered();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<std::string> hosts_;  // by rank
  std::vector<WaitNotice> heard_;   // by rank
  std::list<Sent> sent_;
};

}  // namespace coppice
