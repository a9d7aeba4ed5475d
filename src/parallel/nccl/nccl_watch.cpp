#include "parallel/nccl/nccl_watch.hpp"

#include <algorithm>
#include <utility>

namespace coppice {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(5), kBetweenExaminations(20);

}  // namespace

NcclWatch::NcclWatch(MpiSession& session, WatchdogConfig watchdog)
    : session_(session), watchdog_(std::move(watchdog)), thread_([this] { watch(); }) {
  session_.add_wait_hook(this, [this] {
    nccl::while_host_waits();
    throw_if_failed();
  });
}

NcclWatch::~NcclWatch() {
  session_.remove_wait_hook(this);
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  change_.notify_one();
  thread_.join();
}

NcclWatch::Axis* NcclWatch::add(nccl::Connection& connection, std::string name) {
  const std::lock_guard lock(mutex_);
  return &axes_.emplace_back(Axis{&connection, std::move(name)});
}

void NcclWatch::remove(Axis* axis) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Pending& pending) { return pending.axis == axis; });
  axes_.remove_if([&](const Axis& other) { return &other == axis; });
}

void NcclWatch::begin(Axis* axis, Collective collective, std::int64_t bytes, Event ready) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(
      {axis, collective, bytes, session_.activity(), std::move(ready), {}, {}, ++begun_});
}

void NcclWatch::done(Axis* axis, Event behind) {
  const std::lock_guard lock(mutex_);
  for (auto pending = pending_.rbegin(); pending != pending_.rend(); ++pending) {
    if (pending->axis != axis) continue;
    pending->behind = std::move(behind);
    return;
  }
}

void NcclWatch::watch() {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!change_.wait_for(lock, kBetweenExaminations, [this] { return ends_; })) {
    const auto now = Clock::now();
    // A pause of this process was not its peers' fault.
    constexpr std::chrono::seconds kStopped(1);
    if (now - last > kStopped) {
      for (Pending& pending : pending_)
        if (pending.started) *pending.started += now - last;
    }
    last = now;
    if (!failed_) examine(now);
  }
}

void NcclWatch::examine(Clock::time_point now) {
  try {
    std::erase_if(pending_, [](const Pending& pending) {
      return pending.behind && pending.behind->is_past();
    });
    for (Axis& axis : axes_) {
      if (!nccl::has_failed(*axis.connection)) continue;
      // The library knows that a peer is lost, but not which: the ranks do.
      const auto at = std::ranges::find(pending_, &axis, &Pending::axis);
      Failure failure{{}, nccl::failure_of(*axis.connection)};
      if (nccl::concerns_peers(*axis.connection) && at != pending_.end()) {
        failure.late = std::move(*at);
      } else {
        failure.text = fmt::format("NCCL failed over the {} axis: {}", axis.name, failure.text);
      }
      return fail(std::move(failure));
    }
    for (Pending& pending : pending_) {
      if (!pending.started && pending.ready.is_past()) pending.started = now;
      if (!pending.started) continue;
      const std::chrono::duration<double> waited = now - *pending.started;
      if (waited.count() <= watchdog_.seconds) continue;
      Pending late = std::move(pending);
      return fail({std::move(late), ""});
    }
  } catch (const std::exception& error) {  // the device itself
    fail({{}, error.what()});
  }
}

// All of them: others wait for this process through other axes.
void NcclWatch::fail(Failure failure) {
  // Events keep the observer of their stream, which is this.
  if (failure.late) failure.late->ready = {}, failure.late->behind.reset();
  failure_ = std::move(failure);
  failed_ = true;
  for (Axis& axis : axes_) nccl::abort(*axis.connection);
}

void NcclWatch::throw_failure() {
  // How long others may take to come to the same conclusion, and to tell it.
  constexpr double kHear = 1;
  const std::lock_guard lock(mutex_);
  if (!failure_->is_told && failure_->late) {
    const Pending& late = *failure_->late;
    const auto wait = session_.begin_wait(name_of(late.collective), late.axis->name, late.activity,
                                          watchdog_, late.started.value_or(Clock::now()));
    wait->hear(std::min(kHear, watchdog_.seconds / 2));
    failure_->text = failure_->text.empty() ? wait->report(late.bytes)
                                            : wait->report(late.bytes, failure_->text);
  }
  failure_->is_told = true;
  throw CommError(failure_->text);
}

void NcclWatch::look() {
  throw_if_failed();
  const auto now = Clock::now();
  if (now - looked_ < kBetweenLooks) return;
  looked_ = now;
  const std::lock_guard lock(mutex_);
  const Pending* oldest = nullptr;
  for (const Pending& pending : pending_) {
    if (pending.started && !(pending.behind && pending.behind->is_past())) {
      oldest = &pending;
      break;
    }
  }
  if (wait_ && (oldest == nullptr || oldest->number != wait_number_)) {
    wait_->end();
    wait_.reset();
  }
  if (oldest == nullptr) return;
  if (!wait_) {
    wait_ = session_.begin_wait(name_of(oldest->collective), oldest->axis->name, oldest->activity,
                                watchdog_, *oldest->started);
    wait_number_ = oldest->number;
  }
  wait_->look();
}

void NcclWatch::wait_until_ready(Axis* axis, LongWait& wait) {
  constexpr std::chrono::microseconds kPause(100);
  for (;;) {
    const nccl::State state = nccl::state_of(*axis->connection);
    if (state == nccl::State::kReady) return;
    throw_if_failed();
    if (state == nccl::State::kFailed)
      throw CommError(fmt::format("NCCL failed over the {} axis: {}", axis->name,
                                  nccl::failure_of(*axis->connection)));
    std::this_thread::sleep_for(kPause);
    wait.look();
    if (wait.is_too_long()) throw CommError(wait.report(0));
  }
}

void NcclWatch::wait_for_start(Axis* axis) {
  const auto wait = session_.begin_wait("the start of NCCL", axis->name, session_.activity(),
                                        watchdog_, Clock::now());
  wait_until_ready(axis, *wait);
  wait->end();
}

void NcclWatch::wait_for_end(Axis* axis) noexcept {
  try {
    const auto wait = session_.begin_wait("the end of NCCL", axis->name, session_.activity(),
                                          watchdog_, Clock::now());
    try {
      nccl::begin_end(*axis->connection);
      wait_until_ready(axis, *wait);
    } catch (const Error&) {  // nobody is to think that this rank still waits
    }
    wait->end();
  } catch (const std::exception&) {
  }
}

}  // namespace coppice
