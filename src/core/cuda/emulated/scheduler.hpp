#pragma once
// When the work of the emulated device's streams runs. On a GPU, work may start the moment it is
// enqueued or long after, and streams overtake each other wherever no event holds them back. So
// here nothing runs because it was enqueued: a seeded order, drawn anew for each seed, runs some
// work at once, leaves the rest lying until the host waits for it, and lets streams pass each
// other. What the host does not wait for may stay undone; what an event does not order comes in
// either order. What the work is, and the memory it touches, are left to runtime.cpp and the
// kernels.
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/emulated/guarded_region.hpp"
#include "core/cuda/emulated/stream_order.hpp"

namespace coppice::emulated {

class Scheduler {
 public:
  class Queue;
  /// A point in a queue's work. Shared by its event and by the queues that wait for it.
  struct Mark {
    Mark(Queue* of, StreamOrder::Clock stands_for) : queue(of), before(std::move(stands_for)) {}
    Queue* queue;
    StreamOrder::Clock before;
    std::atomic<bool> reached = false;  // another thread of the host may ask
  };

  /// `pages` are open while work runs; `order` is told of all of it.
  Scheduler(GuardedRegion& pages, StreamOrder& order);
  /// Ends the process if work has failed and nobody was told.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// The order to draw from here on.
  void set_seed(std::uint64_t seed);

  Queue* begin_queue();
  /// Finishes the queue's work first. What fails in it is kept for the host's next wait.
  void end_queue(Queue* queue) noexcept;

  /// After work has failed, what is left is dropped, as on a GPU, but for `always`.
  void enqueue(Queue& queue, std::string name, std::function<void()> work, bool always = false);
  /// Work that others must take part in: `attempt` is called again until it returns true, and other
  /// queues go on meanwhile. `claims`: what it uses.
  void enqueue_attempts(Queue& queue, std::string name, std::function<bool()> attempt,
                        Claims claims);
  std::shared_ptr<Mark> record(Queue& queue);
  void wait(Queue& queue, std::shared_ptr<const Mark> mark);

  /// The host waits. `look` is called now and then where work waits for others; it may throw.
  ///
  /// Errors    DeviceError with the first failure since the last wait that threw
  using Look = std::function<void()>;
  void finish(Queue& queue, const Look& look = {});
  void finish(const Mark& mark, const Look& look = {});
  void finish_all();
  /// The host is busy with something else than this device, which goes on meanwhile.
  void go_on();

 private:
  struct Item;

  bool runnable(const Queue& queue) const;
  bool run_next(Queue& queue);
  bool advance(Queue& queue);
  bool run_any();
  void run_some_eagerly();
  template <class Done>
  void finish_until(Queue& queue, const Done& done, const Look& look);
  void throw_if_failed();
  std::uint64_t draw(std::uint64_t below);

  GuardedRegion& pages_;
  StreamOrder& order_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::string failure_;
  std::uint64_t seed_ = 0, drawn_ = 0;
  // Of 8 chances: that enqueued work makes some work run at once; that a wait runs other work than
  // what it needs.
  std::uint64_t eager_ = 0, stray_ = 0;
  bool running_ = false;
};

}  // namespace coppice::emulated
