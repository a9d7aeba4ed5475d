#include "parallel/mpi/long_wait.hpp"

#include <fmt/format.h>

#include <thread>

#include "parallel/mpi/heartbeat.hpp"

namespace coppice {

LongWait::LongWait(Heartbeat& heartbeat, const WatchdogConfig& watchdog,
                   std::string_view collective, std::string_view axis, const Activity& activity,
                   Clock::time_point start)
    : heartbeat_(heartbeat),
      watchdog_(watchdog),
      here_(std::make_unique<WaitNotice>(notice_of(collective, axis, activity))),
      start_(start),
      looked_(Clock::now()) {}

LongWait::~LongWait() = default;

double LongWait::seconds() const { return std::chrono::duration<double>(looked_ - start_).count(); }

void LongWait::look() {
  constexpr std::chrono::milliseconds kBetweenLooks(5);
  constexpr std::chrono::seconds kStopped(1);  // such a pause was this process's, not its peers'
  const auto now = Clock::now();
  if (now - looked_ < kBetweenLooks) return;
  if (now - looked_ > kStopped) start_ += now - looked_;
  looked_ = now;
  heartbeat_.listen();
  tell_of_stop(now);
  // Half-way a rank tells the others where it waits, and who waits too answers; who is silent at
  // the end is to blame.
  if (seconds() > watchdog_.seconds / 2 || heartbeat_.another_waits()) tell();
}

void LongWait::end() {
  if (here_->state == WaitNotice::kSilent) return;
  here_->state = WaitNotice::kSilent;
  heartbeat_.announce(*here_);
}

std::string LongWait::report(std::int64_t bytes) const {
  return fmt::format(
      "{} ({} bytes) has not finished in {:.0f} s: {}. Look at what those ranks do, or raise "
      "limits.watchdog_seconds.",
      place_of(*here_), bytes, seconds(), heartbeat_.report());
}

std::string LongWait::report(std::int64_t bytes, std::string_view problem) const {
  return fmt::format("{} ({} bytes) failed: {}; {}. Look at what those ranks do.", place_of(*here_),
                     bytes, problem, heartbeat_.report());
}

void LongWait::hear(double more) {
  tell();
  for (const auto begin = Clock::now();
       std::chrono::duration<double>(Clock::now() - begin).count() < more;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    heartbeat_.listen();
  }
}

void LongWait::tell() {
  if (here_->state == WaitNotice::kWaits) return;
  here_->state = WaitNotice::kWaits;
  heartbeat_.announce(*here_);
}

void LongWait::tell_of_stop(Clock::time_point now) {
  // mpirun kills the ranks 1 s after it has asked them to stop.
  constexpr std::chrono::milliseconds kUnusual(300), kAnswers(500);
  if (heartbeat_.stop_is_told || !watchdog_.stop_requested || !watchdog_.stop_requested()) return;
  if (!stop_seen_) stop_seen_ = now;
  if (now - *stop_seen_ < kUnusual) return;
  tell();
  if (now - *stop_seen_ < kAnswers) return;
  heartbeat_.stop_is_told = true;
  if (heartbeat_.is_first_to_wait() && !heartbeat_.another_fails())
    watchdog_.notice(fmt::format("asked to stop while waiting in {}: {}", place_of(*here_),
                                 heartbeat_.report()));
}

}  // namespace coppice
