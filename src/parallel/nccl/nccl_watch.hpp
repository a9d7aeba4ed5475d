#pragma once
// Whether collectives of devices come to an end. A device waits for its peers without its host, and
// the host then waits for the device, in a wait or in a call that enqueues: so a thread looks for
// collectives that fail or take too long, and stops them all; the device comes free, and the host
// learns why where it waits, or at its next collective. Only the host's main thread uses MPI, so
// telling others and naming the culprit are done there, in look().
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/cuda/runtime.hpp"
#include "parallel/mpi/long_wait.hpp"
#include "parallel/nccl/nccl_calls.hpp"

namespace coppice {

/// Parallel  one per process grid; outlives its communicators
class NcclWatch final : public cuda::WaitObserver {
 public:
  NcclWatch(MpiSession& session, WatchdogConfig watchdog);
  ~NcclWatch() override;

  /// One communicator, from its begin to its end.
  struct Axis {
    nccl::Connection* connection;
    std::string name;
  };
  Axis* add(nccl::Connection& connection, std::string name);
  void remove(Axis* axis);

  /// A collective begins to be enqueued: it waits for peers once the device has passed `ready`.
  /// Not before that collective is enqueued is `done()` called, with the point behind it.
  void begin(Axis* axis, Collective collective, std::int64_t bytes, Event ready);
  void done(Axis* axis, Event behind);

  /// Waits until all ranks of the axis have joined.
  ///
  /// Errors    CommError after the watchdog's seconds, or where NCCL fails
  void wait_for_start(Axis* axis);
  /// Waits until all have ended, or it is in vain: why has been told, or comes from elsewhere.
  void wait_for_end(Axis* axis) noexcept;

  /// Errors    CommError once a collective has failed or has not ended in time, for ever after
  void look() override;
  void throw_if_failed() {
    if (failed_) throw_failure();
  }

 private:
  using Clock = LongWait::Clock;
  struct Pending {
    Axis* axis;
    Collective collective;
    std::int64_t bytes;
    Activity activity;
    Event ready;
    std::optional<Event> behind;
    std::optional<Clock::time_point> started;
    std::uint64_t number;
  };
  struct Failure {
    std::optional<Pending> late;  // a collective that others are to blame for
    std::string text;             // the library's words; none: it takes too long
    bool is_told = false;
  };

  void wait_until_ready(Axis* axis, LongWait& wait);
  void watch();
  void examine(Clock::time_point now);
  void fail(Failure failure);
  [[noreturn]] void throw_failure();

  MpiSession& session_;
  const WatchdogConfig watchdog_;
  std::mutex mutex_;
  std::condition_variable change_;
  std::list<Axis> axes_;
  std::deque<Pending> pending_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_ = false;
  std::uint64_t begun_ = 0;
  bool ends_ = false;
  // The main thread's: the wait that it tells others of.
  std::unique_ptr<LongWait> wait_;
  std::uint64_t wait_number_ = 0;
  Clock::time_point looked_{};
  std::thread thread_;
};

}  // namespace coppice
