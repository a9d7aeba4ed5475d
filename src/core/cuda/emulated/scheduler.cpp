#include "core/cuda/emulated/scheduler.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/error.hpp"

namespace coppice::emulated {

// Work, or a point that is recorded, or a point to wait for.
struct Scheduler::Item {
  std::string name;
  std::function<void()> work;
  std::function<bool()> attempt;
  bool always = false;
  std::shared_ptr<Mark> record;
  std::shared_ptr<const Mark> wait;
  std::shared_ptr<const StreamOrder::Place> place;  // of work and attempts
};

class Scheduler::Queue {
 public:
  explicit Queue(std::size_t stream_number) : stream(stream_number) {}
  std::deque<Item> items;
  std::size_t stream;
};

namespace {

// SplitMix64's finaliser: neighbouring seeds give unrelated orders.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace

Scheduler::Scheduler(GuardedRegion& pages, StreamOrder& order) : pages_(pages), order_(order) {}
Scheduler::~Scheduler() {
  if (failure_.empty()) return;
  std::fprintf(stderr, "work of the emulated device failed and nobody waited for it: %s\n",
               failure_.c_str());
  std::abort();
}

void Scheduler::set_seed(std::uint64_t seed) {
  if (seed == seed_ && drawn_ > 0) return;
  seed_ = seed;
  drawn_ = 0;
  // Temperaments: a device far behind the host, one that keeps up, one that is always faster.
  constexpr std::array<std::uint64_t, 3> kEager = {0, 2, 8}, kStray = {0, 4, 7};
  eager_ = kEager[draw(3)];
  stray_ = kStray[draw(3)];
}

std::uint64_t Scheduler::draw(std::uint64_t below) {
  ++drawn_;
  return mixed(seed_ * 0x9e3779b97f4a7c15U + mixed(drawn_)) % below;
}

Scheduler::Queue* Scheduler::begin_queue() {
  queues_.push_back(std::make_unique<Queue>(order_.begin_stream()));
  return queues_.back().get();
}

void Scheduler::end_queue(Queue* queue) noexcept {
  while (!queue->items.empty()) {
    if (!advance(*queue)) sched_yield();
  }
  order_.end_stream(queue->stream);
  std::erase_if(queues_, [&](const auto& other) { return other.get() == queue; });
}

void Scheduler::enqueue(Queue& queue, std::string name, std::function<void()> work, bool always) {
  queue.items.push_back({std::move(name),
                         std::move(work),
                         {},
                         always,
                         nullptr,
                         nullptr,
                         order_.enqueue(queue.stream)});
  run_some_eagerly();
}

void Scheduler::enqueue_attempts(Queue& queue, std::string name, std::function<bool()> attempt,
                                 Claims claims) {
  auto place = order_.enqueue(queue.stream);
  order_.claim(place, std::move(claims));
  queue.items.push_back(
      {std::move(name), {}, std::move(attempt), false, nullptr, nullptr, std::move(place)});
  run_some_eagerly();
}

std::shared_ptr<Scheduler::Mark> Scheduler::record(Queue& queue) {
  auto mark = std::make_shared<Mark>(&queue, order_.recorded(queue.stream));
  queue.items.push_back({"an event", {}, {}, true, mark, nullptr, nullptr});
  run_some_eagerly();
  return mark;
}

void Scheduler::wait(Queue& queue, std::shared_ptr<const Mark> mark) {
  order_.wait(queue.stream, mark->before);
  if (mark->reached) return;
  queue.items.push_back({"a wait", {}, {}, true, nullptr, std::move(mark), nullptr});
}

bool Scheduler::runnable(const Queue& queue) const {
  if (queue.items.empty()) return false;
  const Item& next = queue.items.front();
  return next.wait == nullptr || next.wait->reached;
}

// Whether the queue has come on: an attempt may have to be made again.
bool Scheduler::run_next(Queue& queue) {
  Item item = std::move(queue.items.front());
  queue.items.pop_front();
  if (item.record) item.record->reached = true;
  if ((!item.work && !item.attempt) || (!failure_.empty() && !item.always)) return true;
  bool done = true;
  running_ = true;
  order_.begin_work(*item.place);
  try {
    const Opened opened(pages_);
    if (item.work) {
      item.work();
    } else {
      done = item.attempt();
    }
  } catch (const DeviceError& error) {
    if (failure_.empty()) failure_ = error.what();
  } catch (const std::exception& error) {
    if (failure_.empty()) failure_ = fmt::format("{}: {}", item.name, error.what());
  }
  order_.end_work();
  running_ = false;
  if (!done) queue.items.push_front(std::move(item));
  return done;
}

// One step of the work that `queue` needs to get on: its own next, or that of the queue it waits
// for. This ends, because a point is recorded before anybody can wait for it.
bool Scheduler::advance(Queue& queue) {
  Queue* at = &queue;
  while (!runnable(*at)) at = at->items.front().wait->queue;
  return run_next(*at);
}

bool Scheduler::run_any() {
  const auto first = queues_.empty() ? 0 : draw(queues_.size());
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = *queues_[(first + i) % queues_.size()];
    if (runnable(queue) && run_next(queue)) return true;
  }
  return false;
}

void Scheduler::run_some_eagerly() {
  while (draw(8) < eager_ && run_any()) {
  }
}

void Scheduler::go_on() {
  if (!running_) run_any();
}

template <class Done>
void Scheduler::finish_until(Queue& queue, const Done& done, const Look& look) {
  COPPICE_CHECK(!running_, "work of the device waits for the device");
  while (!done()) {
    const bool came_on = draw(8) < stray_ ? run_any() : advance(queue);
    if (came_on) continue;
    if (look) look();
    // What another process is asked for may be waiting for what this one has not begun.
    if (draw(8) == 0) run_any();
    sched_yield();  // what is waited for is another process's
  }
  throw_if_failed();
}

void Scheduler::finish(Queue& queue, const Look& look) {
  finish_until(
      queue, [&] { return queue.items.empty(); }, look);
  order_.host_waited(order_.recorded(queue.stream));
}

void Scheduler::finish(const Mark& mark, const Look& look) {
  if (mark.reached) {
    throw_if_failed();
  } else {
    finish_until(
        *mark.queue, [&] { return mark.reached.load(); }, look);
  }
  order_.host_waited(mark.before);
}

void Scheduler::finish_all() {
  COPPICE_CHECK(!running_, "work of the device waits for the device");
  const auto busy = [](const auto& queue) { return !queue->items.empty(); };
  while (std::any_of(queues_.begin(), queues_.end(), busy)) {
    if (!run_any()) sched_yield();
  }
  throw_if_failed();
  for (const auto& queue : queues_) order_.host_waited(order_.recorded(queue->stream));
}

void Scheduler::throw_if_failed() {
  if (failure_.empty()) return;
  while (run_any()) {  // drops what is left
  }
  order_.forget_claims();
  throw DeviceError(std::exchange(failure_, {}));
}

}  // namespace coppice::emulated
