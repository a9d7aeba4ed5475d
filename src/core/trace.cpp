#include "core/trace.hpp"

#include <chrono>
#include <limits>

namespace coppice {
namespace {

template <class Clock>
std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string_view name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kStep:
      return "step";
    case TraceKind::kMicrobatch:
      return "microbatch";
    case TraceKind::kPhase:
      return "phase";
    case TraceKind::kLayer:
      return "layer";
    case TraceKind::kModule:
      return "module";
    case TraceKind::kOp:
      return "op";
    case TraceKind::kCollective:
      return "collective";
    case TraceKind::kWait:
      return "wait";
  }
  return "unknown";
}

Trace::Trace(std::int64_t capacity) : capacity_(capacity) {
  events_.reserve(static_cast<std::size_t>(capacity));
  // The same moment by both clocks. A process may be held up between two readings, so the closest
  // of several counts.
  std::int64_t closest = std::numeric_limits<std::int64_t>::max();
  for (int reading = 0; reading < 16; ++reading) {
    const auto before = nanoseconds<std::chrono::steady_clock>();
    const auto now = nanoseconds<std::chrono::system_clock>();
    const auto apart = nanoseconds<std::chrono::steady_clock>() - before;
    if (apart >= closest) continue;
    closest = apart;
    start_ns_ = before;
    start_unix_ns_ = now;
  }
}

std::int64_t Trace::now_ns() const { return nanoseconds<std::chrono::steady_clock>() - start_ns_; }

std::int32_t Trace::begin(TraceKind kind, const char* name, const TraceFacts& facts) {
  if (std::ssize(events_) == capacity_) {
    if (omitted_++ == 0) full_ns_ = now_ns();
    return TraceEvent::kNone;
  }
  events_.push_back({.name = name,
                     .begin_ns = now_ns(),
                     .duration_ns = TraceEvent::kOpen,
                     .parent = innermost_,
                     .kind = kind,
                     .facts = facts});
  innermost_ = static_cast<std::int32_t>(events_.size()) - 1;
  return innermost_;
}

void Trace::end(std::int32_t place) {
  if (place == TraceEvent::kNone) return;
  TraceEvent& event = events_[static_cast<std::size_t>(place)];
  event.duration_ns = now_ns() - event.begin_ns;
  innermost_ = event.parent;
}

void Trace::add_background(const char* name, const TraceSpan& ran, std::int32_t parent,
                           const TraceFacts& facts) {
  if (std::ssize(background_) == capacity_) {
    if (omitted_++ == 0) full_ns_ = now_ns();
    return;
  }
  const auto begin = std::chrono::nanoseconds(ran.begin.time_since_epoch()).count() - start_ns_;
  background_.push_back({.name = name,
                         .begin_ns = begin,
                         .duration_ns = std::chrono::nanoseconds(ran.end - ran.begin).count(),
                         .parent = parent,
                         .kind = TraceKind::kCollective,
                         .facts = facts});
}

void Trace::forget(std::int32_t place) {
  if (place == TraceEvent::kNone) return;
  innermost_ = events_[static_cast<std::size_t>(place)].parent;
  events_.erase(events_.begin() + place, events_.end());
}

}  // namespace coppice
