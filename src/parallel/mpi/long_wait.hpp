#pragma once
// What a rank does while it waits long for others: it tells them where, hears where they are, and
// says so once when it is asked to stop. How the waiting itself is done, and when it is given up,
// is the waiter's business: for MPI (mpi_communicator.cpp) or for a device (nccl/nccl_watch.cpp).
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/activity.hpp"
#include "parallel/mpi/mpi_session.hpp"

namespace coppice {

class Heartbeat;
struct WaitNotice;

class LongWait {
 public:
  using Clock = std::chrono::steady_clock;
  /// `activity`: what the rank was doing when it called the collective.
  LongWait(Heartbeat& heartbeat, const WatchdogConfig& watchdog, std::string_view collective,
           std::string_view axis, const Activity& activity, Clock::time_point start);
  ~LongWait();

  /// To be called often; looks at most every few milliseconds.
  void look();
  /// The wait has ended well: others hear so if they were told of it.
  void end();
  /// Without the time in which this process was stopped.
  double seconds() const;
  bool is_too_long() const { return seconds() > watchdog_.seconds; }
  /// Where the wait is, for how long, and who is to blame.
  std::string report(std::int64_t bytes) const;
  /// Where the wait is, what went wrong, and where others are.
  std::string report(std::int64_t bytes, std::string_view problem) const;
  /// Tells others, and hears them for so long, where there was no time for it before.
  void hear(double more);

 private:
  void tell();
  void tell_of_stop(Clock::time_point now);

  Heartbeat& heartbeat_;
  const WatchdogConfig& watchdog_;
  std::unique_ptr<WaitNotice> here_;
  Clock::time_point start_, looked_;
  std::optional<Clock::time_point> stop_seen_;  // since when this rank waits, asked to stop
};

}  // namespace coppice
