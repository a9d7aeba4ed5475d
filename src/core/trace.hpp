#pragma once
// What one rank did and when, down to single operations, for whoever asks where the time goes. A
// run that is traced owns a Trace and hands it on in the ExecContext; code marks its work with a
// TraceScope. Files of traces, and how ranks come together in one, are launch/'s.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace coppice {

/// From the outside in: each lies within those above it. Ops hold no ops.
enum class TraceKind : std::uint8_t {
  kStep,
  kMicrobatch,
  kPhase,  ///< plan, forward, head, backward, reduce, optimizer, ...; also outside of micro-batches
  kLayer,
  kModule,      ///< a layer's linear with its collectives, or the head: ops of one purpose
  kOp,          ///< arithmetic of this rank
  kCollective,  ///< with other ranks, waiting for them included
  kWait,        ///< for a collective that ran under compute
};

/// "step", "microbatch", ...
std::string_view name_of(TraceKind kind);

/// What is known of an event beside its time; what does not apply stays as it is here.
struct TraceFacts {
  std::int64_t index = -1;  ///< number of the step (from 1), micro-batch or layer (from 0)
  std::int64_t rows = -1;
  double flops = 0.0;          ///< multiplications and additions; ops only, so that sums count once
  std::int64_t bytes = -1;     ///< payload this rank sends, as in CollectiveCounter
  const char* axis = nullptr;  ///< of the process grid; a literal
};

struct TraceEvent {
  const char* name;          ///< a literal
  std::int64_t begin_ns;     ///< since the trace's start
  std::int64_t duration_ns;  ///< kOpen until the scope ends
  std::int32_t parent;       ///< place of the event it lies in, or kNone
  TraceKind kind;
  TraceFacts facts;

  static constexpr std::int64_t kOpen = -1;
  static constexpr std::int32_t kNone = -1;
};

/// A stretch of time by this process's steady clock.
struct TraceSpan {
  std::chrono::steady_clock::time_point begin{}, end{};
};

/// Units     time is the host's: on a device, ops that only enqueue take no time here
/// Memory    room for `capacity` events, taken at the start and resident as far as it is used;
///           background() has as many at most, as they come. Events that begin when it is full are
///           counted and left out
/// Repeats   watches and changes nothing: a traced run has the bits of one that is not
class Trace {
 public:
  /// About 25 steps of a model of 30 layers with 8 micro-batches each.
  static constexpr std::int64_t kCapacity = std::int64_t{1} << 18;

  explicit Trace(std::int64_t capacity = kCapacity);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// In the order of their beginnings, so that an event comes behind those it lies in.
  std::span<const TraceEvent> events() const { return events_; }
  /// What ran beside the thread that drives the rank; events of one axis do not overlap.
  std::span<const TraceEvent> background() const { return background_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t omitted() const { return omitted_; }
  /// When the first event was left out, as in TraceEvent.
  std::int64_t full_ns() const { return full_ns_; }
  /// Nanoseconds from 1970 (UTC) to the start, by which ranks find a common zero: to a microsecond
  /// on one host, between hosts as well as their clocks agree.
  std::int64_t start_unix_ns() const { return start_unix_ns_; }

  /// The open event that the next one would lie in, or kNone.
  std::int32_t innermost() const { return innermost_; }
  /// A collective that has run under compute; `parent` is the event it was started in.
  void add_background(const char* name, const TraceSpan& ran, std::int32_t parent,
                      const TraceFacts& facts);

 private:
  friend class TraceScope;
  std::int64_t now_ns() const;
  /// The event's place, or kNone where it is left out.
  std::int32_t begin(TraceKind kind, const char* name, const TraceFacts& facts);
  void end(std::int32_t place);
  void forget(std::int32_t place);

  std::vector<TraceEvent> events_, background_;
  std::int64_t capacity_;
  std::int32_t innermost_ = TraceEvent::kNone;  // of the open ones
  std::int64_t omitted_ = 0, full_ns_ = 0;
  std::int64_t start_ns_ = 0, start_unix_ns_ = 0;
};

/// One event, for the length of a scope. Costs a branch at each end where `trace` is null.
class TraceScope {
 public:
  TraceScope(Trace* trace, TraceKind kind, const char* name, const TraceFacts& facts = {})
      : trace_(trace), place_(trace == nullptr ? 0 : trace->begin(kind, name, facts)) {}
  /// An op.
  TraceScope(Trace* trace, const char* name, const TraceFacts& facts = {})
      : TraceScope(trace, TraceKind::kOp, name, facts) {}
  ~TraceScope() {
    if (trace_ != nullptr) trace_->end(place_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  /// Nothing was done here after all: the event and those within it are taken out.
  void forget() {
    if (trace_ != nullptr) trace_->forget(place_);
    trace_ = nullptr;
  }

 private:
  Trace* trace_;
  std::int32_t place_;
};

}  // namespace coppice
