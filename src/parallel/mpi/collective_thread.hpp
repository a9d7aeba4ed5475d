#pragma once
// The thread in which an axis's collectives run under compute: one after the other, in the order in
// which they were started. MPI moves data only while somebody calls it; this thread does, so that
// the one that drives the rank need not. Private to parallel/mpi.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/trace.hpp"

namespace coppice {

class CollectiveThread {
 public:
  /// One collective. `work` may call CollectiveThread::check_abandoned while it waits.
  struct Job {
    std::function<void()> work;
    TraceSpan ran{};
    std::exception_ptr error{};
    std::atomic<bool> done = false;
  };

  CollectiveThread() = default;
  CollectiveThread(const CollectiveThread&) = delete;
  CollectiveThread& operator=(const CollectiveThread&) = delete;
  ~CollectiveThread() { abandon(); }

  std::shared_ptr<Job> add(std::function<void()> work);
  /// No job is waiting or running.
  bool is_idle() const { return unfinished_.load() == 0; }
  /// Whether the caller is a job.
  bool runs_here() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// In a job: throws once nobody waits for it any more.
  void check_abandoned() const;
  /// Gives up what is under way, for an error on its way out. Nothing may be added afterwards.
  void abandon();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::atomic<int> unfinished_ = 0;
  std::atomic<bool> abandoned_ = false;
  std::thread thread_;  // from the first job on
};

}  // namespace coppice
