#pragma once
// A phase of a step for the length of a scope: what this rank says it does when it waits too long,
// an event of the trace, and time in the metrics. All three by one name, so that they cannot
// differ.
#include <optional>

#include "core/exec_context.hpp"
#include "core/stopwatch.hpp"
#include "parallel/activity.hpp"

namespace coppice {

class Phase {
 public:
  /// `name` is a literal.
  Phase(ExecContext& ctx, Activity& activity, const char* name)
      : scope_(ctx.trace, TraceKind::kPhase, name), clock_(ctx.stream) {
    activity.phase = name;
  }
  /// Adds its time to `seconds`.
  Phase(ExecContext& ctx, Activity& activity, const char* name, double& seconds)
      : Phase(ctx, activity, name) {
    seconds_ = &seconds;
  }
  Phase(ExecContext& ctx, Activity& activity, const char* name, std::optional<double>& seconds)
      : Phase(ctx, activity, name, seconds ? *seconds : seconds.emplace(0.0)) {}
  ~Phase() {
    if (seconds_ != nullptr) *seconds_ += clock_.lap();
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  TraceScope scope_;
  Stopwatch clock_;
  double* seconds_ = nullptr;
};

}  // namespace coppice
